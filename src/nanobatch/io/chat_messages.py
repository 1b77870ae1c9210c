"""Chat messages, tools and template variables of a row, checked and made plain.

Knows the shapes that OpenAI's API gives them; not what a chat template does with them. JSON
text is accepted in place of a list or an object (`structured`): CSV and many Parquet files have
no other way.
"""

from collections.abc import Mapping

from nanobatch.io.json_text import JsonError, decode_json
from nanobatch.io.parameter_names import TEMPLATE_ARGUMENT_NAMES
from nanobatch.io.row_fault import RowFault, shown
from nanobatch.request import ErrorCode

Message = Mapping[str, object]

_TEXT_PART_TYPES = ("text", "input_text", "output_text")
SYSTEM_ROLES = ("system", "developer")


def structured(name: str, value: object) -> tuple[object, int]:
    """Return a list or object as it is and JSON text decoded, and the surrogates replaced.

    Raises:
        RowFault: `invalid_json`: the text has a flaw, such as a duplicate key.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value, 0
    try:
        decoded = decode_json(value)
    except JsonError:
        return value, 0
    for key, reason in decoded.flaws.items():
        member = f"{name} member {shown(key)}" if key else name
        raise RowFault(ErrorCode.INVALID_JSON, f"{member} {reason}")
    return decoded.value, decoded.num_surrogates


def read_messages(name: str, value: object) -> tuple[Message, ...]:
    """Return chat turns: null keys stripped, text parts joined as they stand.

    Raises:
        RowFault: `bad_type`, `empty_prompt` (no turn), or `unsupported` (parts that are no text).
    """
    if not isinstance(value, list):
        raise _bad_type(name, value, "a list of messages")
    if not value:
        raise RowFault(ErrorCode.EMPTY_PROMPT, f"{name} is an empty list")
    return tuple([_read_message(name, place, turn) for place, turn in enumerate(value)])


def read_tools(name: str, value: object) -> tuple[Message, ...] | None:
    """Return tool descriptions, null keys stripped; None for an empty list.

    Raises:
        RowFault: `bad_type`.
    """
    if not isinstance(value, list):
        raise _bad_type(name, value, "a list of objects")
    return _read_objects(name, value) or None


def read_template_kwargs(name: str, value: object) -> Mapping[str, object] | None:
    """Return variables for the chat template; None for an empty object.

    Raises:
        RowFault: `bad_type`, or `bad_params`: a name is one that rendering takes for itself.
    """
    if not isinstance(value, dict):
        raise _bad_type(name, value, "an object")
    variables = _without_nulls_in(value)
    for key in variables:
        if key in TEMPLATE_ARGUMENT_NAMES:
            raise RowFault(
                ErrorCode.BAD_PARAMS, f"{name} has {key!r}, which no template variable can be"
            )
    return variables or None


def with_system(messages: tuple[Message, ...], system: str | None) -> tuple[Message, ...]:
    """Return the messages with a system turn put first, unless they begin with their own."""
    if system is None or messages[0]["role"] in SYSTEM_ROLES:
        return messages
    return ({"role": "system", "content": system}, *messages)


def _read_message(messages_name: str, place: int, turn: object) -> Message:
    if isinstance(turn, dict):
        role, content = turn.get("role"), turn.get("content")
        if len(turn) == 2 and isinstance(role, str) and isinstance(content, str):
            return turn  # nearly every message: nothing to strip or to join
    name = f"{messages_name}[{place}]"
    if not isinstance(turn, dict):
        raise _bad_type(name, turn, "an object with role and content")
    if not isinstance(role, str):
        raise _bad_type(f"{name}.role", role, "a string")
    message = _without_nulls_in(turn)
    if message.get("tool_calls"):
        message["tool_calls"] = _read_tool_calls(f"{name}.tool_calls", message["tool_calls"])
    if isinstance(content, list):
        message["content"] = _join_parts(f"{name}.content", content)
    elif not isinstance(content, str) and (content is not None or not message.get("tool_calls")):
        raise _bad_type(f"{name}.content", content, "a string or a list of text parts")
    return message


def _join_parts(name: str, parts: list[object]) -> str:
    return "".join([_read_part(f"{name}[{place}]", part) for place, part in enumerate(parts)])


def _read_part(name: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise _bad_type(name, part, "an object with a type")
    if kind not in _TEXT_PART_TYPES:
        raise RowFault(
            ErrorCode.UNSUPPORTED, f"{name} is of type {shown(kind)}; only text parts are supported"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise _bad_type(f"{name}.text", text, "a string")
    return text


def _read_tool_calls(name: str, value: object) -> list[Message]:
    if not isinstance(value, list):
        raise _bad_type(name, value, "a list of objects")
    return [_with_object_arguments(call) for call in _read_objects(name, value)]


def _with_object_arguments(call: Message) -> Message:
    """Return a tool call with its arguments as an object, as chat templates expect them.

    OpenAI's API carries them as JSON text; text that is no object stays as it is.
    """
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = decode_json(function["arguments"]).value
    except JsonError:
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _read_objects(name: str, items: list[object]) -> tuple[Message, ...]:
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            raise _bad_type(f"{name}[{place}]", item, "an object")
    return tuple(_without_nulls_in(item) for item in items if isinstance(item, dict))


def _without_nulls_in(members: dict[str, object]) -> dict[str, object]:
    return {key: _without_nulls(value) for key, value in members.items() if value is not None}


def _without_nulls(value: object) -> object:
    """Strip keys whose value is null, at every depth: Parquet cannot tell them from absent."""
    if isinstance(value, dict):
        return _without_nulls_in(value)
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _bad_type(name: str, value: object, wanted: str) -> RowFault:
    return RowFault(ErrorCode.BAD_TYPE, f"{name} is {shown(value)}; it must be {wanted}")
