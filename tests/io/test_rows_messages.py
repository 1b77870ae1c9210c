"""Chat messages: text parts joined, null keys stripped, tools and tool calls handed on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nanobatch.job_config import RowConfig
from nanobatch.request import ErrorCode, RowError
from tests.io.row_files import body_line, code_of, parse_row, request_of

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def call(arguments: object) -> dict[str, object]:
    return {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}


def test_text_parts_are_joined_as_they_stand(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi", "extra": None}]
    request = request_of(tmp_path, {"messages": [{"role": "user", "content": parts}]})
    assert request.messages == ({"role": "user", "content": "Say hi"},)


def test_null_keys_are_stripped_at_every_depth(tmp_path: Path) -> None:
    message = {**USER, "name": None, "tool_calls": None, "meta": {"a": None, "b": [{"c": None}]}}
    request = request_of(tmp_path, {"messages": [message]})
    assert request.messages == ({**USER, "meta": {"b": [{}]}},)


def test_tool_calls_have_their_arguments_as_an_object(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call('{"x": 1}')]}
    request = request_of(tmp_path, {"messages": [USER, message]})
    assert request.messages == (USER, {"role": "assistant", "tool_calls": [call({"x": 1})]})


@pytest.mark.parametrize("arguments", ["{not json", "[1]", {"x": 1}])
def test_arguments_that_are_no_json_object_stay_as_they_are(
    tmp_path: Path, arguments: object
) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [call(arguments)]}
    request = request_of(tmp_path, {"messages": [USER, message]})
    assert request.messages == (USER, message)


def test_tools_are_handed_on_in_flat_rows_and_bodies(tmp_path: Path) -> None:
    row = {"messages": [USER], "tools": [TOOL], "tool_choice": "auto"}
    assert request_of(tmp_path, row).tools == (TOOL,)
    assert request_of(tmp_path, body_line(row)).tools == (TOOL,)
    assert request_of(tmp_path, {**row, "tools": json.dumps([TOOL])}).tools == (TOOL,)


def test_tool_choice_none_tells_the_model_of_no_tools(tmp_path: Path) -> None:
    row = {"messages": [USER], "tools": [TOOL], "tool_choice": "none"}
    assert request_of(tmp_path, row).tools is None


def test_chat_template_kwargs_are_handed_on(tmp_path: Path) -> None:
    row = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False, "x": None}}
    assert request_of(tmp_path, row).chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    "name",
    [
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tools",
        "truncation",
    ],
)
def test_a_template_variable_cannot_have_a_name_that_rendering_takes(
    tmp_path: Path, name: str
) -> None:
    row = {"messages": [USER], "chat_template_kwargs": {"style": "dry", name: True}}
    message = f"chat_template_kwargs has '{name}', which no template variable can be"
    flat = RowError(code=ErrorCode.BAD_PARAMS, message=message)
    assert parse_row(tmp_path, row) == flat
    assert parse_row(tmp_path, body_line(row)) == replace(flat, message=f"body.{message}")
    absent = {**row, "chat_template_kwargs": {"style": "dry", name: None}}
    assert request_of(tmp_path, absent).chat_template_kwargs == {"style": "dry"}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", "messages is 'hi'; it must be a list of messages"),
        ({"role": "user"}, "messages is an object; it must be a list of messages"),
        ([5], "messages[0] is 5; it must be an object with role and content"),
        ([USER, {"content": "x"}], "messages[1].role is null; it must be a string"),
        ([{"role": 1, "content": "x"}], "messages[0].role is 1; it must be a string"),
        (
            [{"role": "user"}],
            "messages[0].content is null; it must be a string or a list of text parts",
        ),
        (
            [{"role": "assistant", "content": None, "tool_calls": []}],
            "messages[0].content is null; it must be a string or a list of text parts",
        ),
        (
            [{"role": "user", "content": 5}],
            "messages[0].content is 5; it must be a string or a list of text parts",
        ),
        (
            [{"role": "user", "content": {"type": "text"}}],
            "messages[0].content is an object; it must be a string or a list of text parts",
        ),
        (
            [{"role": "user", "content": ["x"]}],
            "messages[0].content[0] is 'x'; it must be an object with a type",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": None}]}],
            "messages[0].content[0].text is null; it must be a string",
        ),
        (
            [{"role": "assistant", "tool_calls": [1]}],
            "messages[0].tool_calls[0] is 1; it must be an object",
        ),
    ],
)
def test_a_wrong_type_in_messages_says_where(
    tmp_path: Path, messages: object, message: str
) -> None:
    result = parse_row(tmp_path, {"messages": messages})
    assert isinstance(result, RowError)
    assert (result.code, result.message) == ("bad_type", message)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_parts_that_are_no_text_are_unsupported(tmp_path: Path, kind: str) -> None:
    result = parse_row(tmp_path, {"messages": [{"role": "user", "content": [{"type": kind}]}]})
    assert isinstance(result, RowError)
    assert result.code == "unsupported"
    assert result.message == (
        f"messages[0].content[0] is of type '{kind}'; only text parts are supported"
    )


@pytest.mark.parametrize(
    "row", [{"tools": "hammer"}, {"tools": [1]}, {"tools": {}}, {"chat_template_kwargs": [1]}]
)
def test_wrong_types_beside_messages_are_bad_type(tmp_path: Path, row: dict[str, object]) -> None:
    assert code_of(parse_row(tmp_path, {"messages": [USER], **row})) == "bad_type"


def test_json_text_with_a_duplicate_key_is_invalid_json(tmp_path: Path) -> None:
    text = '[{"role": "user", "content": "a", "content": "b"}]'
    result = parse_row(tmp_path, {"messages": text})
    assert isinstance(result, RowError)
    assert result.code == "invalid_json"
    assert result.message == "messages has a member 'content' that is given twice"


def test_a_system_turn_is_put_before_messages_that_have_none(tmp_path: Path) -> None:
    config = RowConfig(system="Be brief.")
    system = {"role": "system", "content": "Be brief."}
    own = {"role": "system", "content": "Be long."}
    assert request_of(tmp_path, {"messages": [USER]}, config).messages == (system, USER)
    assert request_of(tmp_path, {"messages": [own, USER]}, config).messages == (own, USER)
