"""Prompt, parameters and chat extras of a body (or a flat row, which is a body without a frame).

Knows what each key means and which keys are refused; where the keys came from is `rows`' part.
"""

from collections.abc import Mapping
from typing import NamedTuple

from nanobatch.io.chat_messages import (
    Message,
    read_messages,
    read_template_kwargs,
    read_tools,
    structured,
    with_system,
)
from nanobatch.io.input_row import InputRow
from nanobatch.io.parameter_names import (
    CHAT_NAMES,
    is_later_name,
    is_neutral,
    unsupported_message,
)
from nanobatch.io.row_fault import RowFault, shown, shown_name
from nanobatch.io.row_names import BODY_NAMES, BodyNames, KnownBodies
from nanobatch.io.row_params import PARAMETERS, ParameterReader, read_integer, read_token_ids
from nanobatch.job_config import RowConfig
from nanobatch.request import ErrorCode, Request, SamplingParams

MAX_UNKNOWN_PARAMETERS = 100
"""Unknown names remembered for warnings: a file may have a new one in every row."""


class _Prompt(NamedTuple):
    """The fields of a request that say what to answer."""

    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    input_ids: tuple[int, ...] | None = None
    is_user_turn: bool = False
    system: str | None = None


class _Extras(NamedTuple):
    """The fields of a request beside prompt and sampling parameters."""

    tools: tuple[Message, ...] | None = None
    chat_template_kwargs: Mapping[str, object] | None = None
    priority: int = 0


_NO_EXTRAS = _Extras()


class BodyReader:
    """Reads bodies into requests; remembers which unknown names it met.

    Attributes:
        unknown_parameters: Names in bodies that mean nothing to us, as messages show them, with
            `file:line` of the first use.
    """

    def __init__(
        self, row_config: RowConfig, defaults: SamplingParams, *, vocab_size: int | None
    ) -> None:
        self._config = row_config
        self._vocab_size = vocab_size
        self._defaults = defaults
        self._parameters = ParameterReader(defaults, vocab_size)
        self._known = KnownBodies()
        self.unknown_parameters: dict[str, str] = {}

    def read(
        self,
        row: InputRow,
        values: Mapping[str, object],
        *,
        prefix: str,
        names: BodyNames | None = None,
    ) -> Request:
        """Return the request of a body.

        Args:
            row: The row that is being read.
            values: The body's members.
            prefix: Put before names in messages; empty for a flat row, whose unknown names are
                columns and not parameters.
            names: What the names of values say, where it is known.

        Raises:
            RowFault: The body is at fault.
        """
        if names is None:
            names = self._known.names(values, in_body=bool(prefix))
        if names is not None and names.is_prompt_only:
            text = values["prompt"]
            if type(text) is str and text:
                return self.request_of_prompt(row, text)
        if names is None or values[names.prompt] is None:
            prompt_name = _only_prompt_name(values, "body" if prefix else "row")
            prompt = self._read_prompt(row, prompt_name, values[prompt_name], prefix)
            given = self._parameters_among(row, values, in_body=bool(prefix))
            has_extras = not CHAT_NAMES.isdisjoint(values)
        else:
            value, has_extras = values[names.prompt], names.has_extras
            given = {name: values[name] for name in names.parameters if values[name] is not None}
            prompt = self._read_prompt(row, names.prompt, value, prefix)
        extras = _read_extras(row, values, prefix) if has_extras else _NO_EXTRAS
        return self._request(row, prompt, given, extras)

    def request_of_prompt(self, row: InputRow, text: str) -> Request:
        """Return the request of a flat row that says nothing beside its prompt."""
        return Request(row.row_index, text, None, None, False, None, self._defaults)

    def read_prompt_column(
        self, row: InputRow, name: str, value: object, *, given: Mapping[str, object]
    ) -> Request:
        """Return the request of a table's prompt, which is a user turn unless `raw` is set.

        Args:
            row: The row that is being read.
            name: What messages call the prompt.
            value: The prompt.
            given: Values of `param_columns`, None where the row has none.

        Raises:
            RowFault: The prompt or a parameter is at fault.
        """
        text = _require_text(name, value)
        is_user_turn = not self._config.raw
        system = self._config.system if is_user_turn else None
        prompt = _Prompt(prompt=text, is_user_turn=is_user_turn, system=system)
        return self._request_of_table(row, prompt, given)

    def read_messages_column(
        self, row: InputRow, name: str, value: object, *, given: Mapping[str, object]
    ) -> Request:
        """Return the request of a table's chat; arguments as for `read_prompt_column`."""
        return self._request_of_table(row, self._read_chat(row, name, value), given)

    def _request_of_table(
        self, row: InputRow, prompt: _Prompt, given: Mapping[str, object]
    ) -> Request:
        values = {name: value for name, value in given.items() if value is not None}
        priority = _read_priority("priority", values.pop("priority", None))
        return self._request(row, prompt, values, _Extras(priority=priority))

    def _request(
        self, row: InputRow, prompt: _Prompt, given: Mapping[str, object], extras: _Extras
    ) -> Request:
        params = self._parameters.read(given)
        return Request(
            row_index=row.row_index,
            prompt=prompt.prompt,
            messages=prompt.messages,
            input_ids=prompt.input_ids,
            is_user_turn=prompt.is_user_turn,
            system=prompt.system,
            params=params,
            tools=extras.tools,
            chat_template_kwargs=extras.chat_template_kwargs,
            priority=extras.priority,
        )

    def _parameters_among(
        self, row: InputRow, values: Mapping[str, object], *, in_body: bool
    ) -> dict[str, object]:
        """Return the sampling parameters that are given; refuse those that we lack."""
        given: dict[str, object] = {}
        for name, value in values.items():
            if value is None:
                continue
            if name in PARAMETERS:
                given[name] = value
            elif name in BODY_NAMES:
                continue
            elif is_later_name(name, in_body=in_body):
                if not is_neutral(name, value):
                    raise RowFault(ErrorCode.UNSUPPORTED, unsupported_message(name, shown(value)))
            elif in_body:
                self._note_unknown(row, name)
        return given

    def _note_unknown(self, row: InputRow, name: str) -> None:
        if self._config.strict:
            raise RowFault(ErrorCode.BAD_PARAMS, f"body has an unknown parameter {shown(name)}")
        if len(self.unknown_parameters) < MAX_UNKNOWN_PARAMETERS:
            self.unknown_parameters.setdefault(shown_name(name), row.location)

    def _read_prompt(self, row: InputRow, name: str, value: object, prefix: str) -> _Prompt:
        if name == "messages":
            return self._read_chat(row, f"{prefix}messages", value)
        if name == "input_ids":
            decoded, _ = structured(name, value)
            return _Prompt(input_ids=self._read_input_ids(f"{prefix}{name}", decoded))
        if isinstance(value, list) and prefix:
            return self._read_listed_prompt(f"{prefix}{name}", value)
        return _Prompt(prompt=_require_text(f"{prefix}{name}", value))

    def _read_listed_prompt(self, name: str, value: list[object]) -> _Prompt:
        """Read the list that OpenAI allows: token ids, or prompts, of which we take one."""
        if not any(isinstance(item, str | list) for item in value):
            return _Prompt(input_ids=self._read_input_ids(name, value))
        if not any(all(isinstance(item, kind) for item in value) for kind in (str, list)):
            wanted = "it must be a string or a list of token ids"
            raise RowFault(ErrorCode.BAD_TYPE, f"{name} is an array of several kinds; {wanted}")
        if len(value) > 1:
            raise RowFault(
                ErrorCode.UNSUPPORTED, f"{name} holds {len(value):,} prompts; a row has one"
            )
        if isinstance(value[0], list):
            return _Prompt(input_ids=self._read_input_ids(f"{name}[0]", value[0]))
        return _Prompt(prompt=_require_text(f"{name}[0]", value[0]))

    def _read_chat(self, row: InputRow, name: str, value: object) -> _Prompt:
        turns, num_surrogates = structured(name, value)
        row.num_surrogates += num_surrogates
        return _Prompt(messages=with_system(read_messages(name, turns), self._config.system))

    def _read_input_ids(self, name: str, value: object) -> tuple[int, ...]:
        try:
            input_ids = read_token_ids(name, value)
        except ValueError as error:
            raise RowFault(ErrorCode.BAD_TYPE, str(error)) from None
        if not input_ids:
            raise RowFault(ErrorCode.EMPTY_PROMPT, f"{name} is an empty list")
        lowest, highest = min(input_ids), max(input_ids)
        if lowest < 0:
            raise RowFault(ErrorCode.BAD_PARAMS, f"{name} holds {shown(lowest)}; ids begin at 0")
        if self._vocab_size is not None and highest >= self._vocab_size:
            bound = f"the vocabulary has {self._vocab_size:,} tokens"
            raise RowFault(ErrorCode.BAD_PARAMS, f"{name} holds {shown(highest)}; {bound}")
        return input_ids


def _only_prompt_name(values: Mapping[str, object], where: str) -> str:
    names = [name for name in ("prompt", "messages", "input_ids") if values.get(name) is not None]
    if len(names) == 1:
        return names[0]
    if names:
        raise RowFault(ErrorCode.BAD_TYPE, f"{where} has {' and '.join(names)}; give one of them")
    raise RowFault(ErrorCode.MISSING_PROMPT, f"{where} has no prompt, messages or input_ids")


def _require_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise RowFault(ErrorCode.BAD_TYPE, f"{name} is {shown(value)}; it must be a string")
    if not value:
        raise RowFault(ErrorCode.EMPTY_PROMPT, f"{name} is empty")
    return value


def _read_extras(row: InputRow, values: Mapping[str, object], prefix: str) -> _Extras:
    tools, num_in_tools = structured("tools", values.get("tools"))
    variables, num_in_variables = structured("kwargs", values.get("chat_template_kwargs"))
    row.num_surrogates += num_in_tools + num_in_variables
    offers_tools = _read_tool_choice(f"{prefix}tool_choice", values.get("tool_choice"))
    read = None if tools is None else read_tools(f"{prefix}tools", tools)
    return _Extras(
        tools=read if offers_tools else None,
        chat_template_kwargs=None
        if variables is None
        else read_template_kwargs(f"{prefix}chat_template_kwargs", variables),
        priority=_read_priority(f"{prefix}priority", values.get("priority")),
    )


def _read_tool_choice(name: str, value: object) -> bool:
    """Return whether the model is to be told of the tools: `none` means that it calls none."""
    if value is None or value in ("auto", "none"):
        return value != "none"
    raise RowFault(ErrorCode.UNSUPPORTED, unsupported_message(name, shown(value)))


def _read_priority(name: str, value: object) -> int:
    if value is None:
        return 0
    try:
        priority = read_integer(name, value)
    except ValueError as error:
        raise RowFault(ErrorCode.BAD_PARAMS, str(error)) from None
    if not -(2**63) <= priority < 2**63:
        raise RowFault(ErrorCode.BAD_PARAMS, f"{name} is {shown(priority)}; it must fit 64 bits")
    return priority
