"""Row shapes are told apart row by row; ids and pass-through columns follow from them."""

from pathlib import Path

import pytest

from nanobatch.request import ErrorCode, Request, RowError
from tests.io.row_files import (
    body_line,
    code_of,
    parse_file,
    parse_row,
    parser,
    read,
    request_of,
    write_bytes,
    write_jsonl,
)

HI = [{"role": "user", "content": "hi"}]
CHAT_URL, COMPLETIONS_URL = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    "frame", [{}, {"method": "POST", "url": CHAT_URL}, {"method": None, "url": None}]
)
def test_a_batch_line_of_chat_completions_is_read(tmp_path: Path, frame: dict[str, object]) -> None:
    request = request_of(tmp_path, body_line({"messages": HI, "max_tokens": 4}, **frame))
    assert (request.messages, request.params.max_tokens) == (tuple(HI), 4)


@pytest.mark.parametrize("frame", [{}, {"method": "POST", "url": COMPLETIONS_URL}])
def test_a_batch_line_of_completions_is_raw_text(tmp_path: Path, frame: dict[str, object]) -> None:
    request = request_of(tmp_path, body_line({"prompt": "Say hi"}, **frame))
    assert (request.prompt, request.is_user_turn) == ("Say hi", False)


@pytest.mark.parametrize(
    ("prompt", "text", "input_ids"),
    [(["one"], "one", None), ([1, 2], None, (1, 2)), ([[1, 2]], None, (1, 2))],
)
def test_the_list_that_openai_allows_as_prompt_is_read(
    tmp_path: Path, prompt: object, text: str | None, input_ids: tuple[int, ...] | None
) -> None:
    request = request_of(tmp_path, body_line({"prompt": prompt}))
    assert (request.prompt, request.input_ids) == (text, input_ids)


@pytest.mark.parametrize("prompt", [[1, "a"], ["a", None], [[1], 2], ["a", [1]]])
def test_a_listed_prompt_of_several_kinds_is_of_no_type(tmp_path: Path, prompt: object) -> None:
    result = parse_row(tmp_path, body_line({"prompt": prompt}))
    assert result == RowError(
        code=ErrorCode.BAD_TYPE,
        message="body.prompt is an array of several kinds; "
        "it must be a string or a list of token ids",
    )


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (body_line("x"), "bad_type", "body is 'x'; it must be an object"),
        (body_line([1]), "bad_type", "body is an array of 1; it must be an object"),
        (body_line({}), "missing_prompt", "body has no prompt, messages or input_ids"),
        (
            body_line({"prompt": "x"}, url=CHAT_URL),
            "missing_prompt",
            "body has no messages, which /v1/chat/completions needs",
        ),
        (
            body_line({"messages": HI}, url=COMPLETIONS_URL),
            "missing_prompt",
            "body has no prompt, which /v1/completions needs",
        ),
        (
            body_line({"prompt": "x"}, url="/v1/embeddings"),
            "unsupported",
            "url is '/v1/embeddings'; /v1/chat/completions and /v1/completions are supported",
        ),
        (
            body_line({"prompt": "x"}, url=["a"]),
            "unsupported",
            "url is an array of 1; /v1/chat/completions and /v1/completions are supported",
        ),
        (
            body_line({"prompt": "x"}, method="GET"),
            "unsupported",
            "method is 'GET'; it must be 'POST'",
        ),
        (
            body_line({"prompt": ["a", "b"]}),
            "unsupported",
            "body.prompt holds 2 prompts; a row has one",
        ),
        (body_line({"prompt": []}), "empty_prompt", "body.prompt is an empty list"),
        (body_line({"prompt": {}}), "bad_type", "body.prompt is an object; it must be a string"),
        (
            {"custom_id": {"a": 1}, "body": {"prompt": "x"}},
            "bad_type",
            "custom_id is an object; it must be a string or a number",
        ),
    ],
)
def test_a_batch_line_at_fault_says_what_and_where(
    tmp_path: Path, line: dict[str, object], code: str, message: str
) -> None:
    result = parse_row(tmp_path, line)
    assert not isinstance(result, Request)
    assert (result.code, result.message) == (code, message)


@pytest.mark.parametrize(
    ("row", "code", "message"),
    [
        ({}, "missing_prompt", "row has no prompt, messages or input_ids"),
        ({"prompt": None, "messages": None}, "missing_prompt", None),
        ({"prompt": ""}, "empty_prompt", "prompt is empty"),
        ({"messages": []}, "empty_prompt", "messages is an empty list"),
        ({"input_ids": []}, "empty_prompt", "input_ids is an empty list"),
        ({"prompt": 5}, "bad_type", "prompt is 5; it must be a string"),
        ({"prompt": True}, "bad_type", "prompt is true; it must be a string"),
        ({"prompt": [1, 2]}, "bad_type", "prompt is an array of 2; it must be a string"),
        ({"input_ids": "x"}, "bad_type", "input_ids is 'x'; it must be a list of token ids"),
        ({"input_ids": [1, True]}, "bad_type", "input_ids[1] is true; it must be an integer"),
        ({"input_ids": [1.5]}, "bad_type", "input_ids[0] is 1.5; it must be an integer"),
        ({"input_ids": [1, -1]}, "bad_params", "input_ids holds -1; ids begin at 0"),
        (
            {"input_ids": [49_152]},
            "bad_params",
            "input_ids holds 49152; the vocabulary has 49,152 tokens",
        ),
        (
            {"prompt": "x", "input_ids": [1]},
            "bad_type",
            "row has prompt and input_ids; give one of them",
        ),
        (
            {"prompt": "x", "id": [1]},
            "bad_type",
            "id is an array of 1; it must be a string or a number",
        ),
        ({"prompt": "x", "id": True}, "bad_type", "id is true; it must be a string or a number"),
    ],
)
def test_a_flat_row_at_fault_says_what_and_the_bound(
    tmp_path: Path, row: dict[str, object], code: str, message: str | None
) -> None:
    result = parse_row(tmp_path, row)
    assert not isinstance(result, Request)
    assert result.code == code
    assert message in (None, result.message)


def test_a_flat_prompt_is_raw_text_and_input_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    raw = request_of(tmp_path, {"prompt": "nul \0 inside", "max_tokens": 2})
    ids = request_of(tmp_path, {"input_ids": [5, 49_151.0]})
    assert (raw.prompt, raw.is_user_turn) == ("nul \0 inside", False)
    assert ids.input_ids == (5, 49_151)


def test_shapes_are_told_apart_row_by_row(tmp_path: Path) -> None:
    rows = [
        {"prompt": "flat"},
        body_line({"prompt": "batch"}),
        {"messages": HI},
        {"url": COMPLETIONS_URL, "body": {"prompt": "no id"}},
        {"body": {"prompt": "only a body"}},
        {"body": None, "prompt": "flat again"},
    ]
    results = parse_file(write_jsonl(tmp_path, rows))
    assert [result.prompt for result in results if isinstance(result, Request)] == [
        "flat",
        "batch",
        None,
        "no id",
        "only a body",
        "flat again",
    ]


def test_a_flat_row_may_have_a_column_called_body(tmp_path: Path) -> None:
    rows = [{"prompt": "x", "body": "a mail"}, {"prompt": "x", "body": {"of": "water"}}]
    row_parser = parser()
    for row in read(write_jsonl(tmp_path, rows)):
        assert not row_parser.is_batch_line(row)
        assert code_of(row_parser.parse(row)) == "ok"
        assert row_parser.passthrough(row).keys() == {"body"}


def test_null_equals_absent_everywhere(tmp_path: Path) -> None:
    absent = {"id": "a", "prompt": "hi", "max_tokens": 2}
    nulls = dict.fromkeys(
        [
            "messages",
            "input_ids",
            "body",
            "url",
            "custom_id",
            "temperature",
            "stop",
            "tools",
            "tool_choice",
            "chat_template_kwargs",
            "priority",
            "response_format",
            "logprobs",
            "seed",
        ]
    )
    assert request_of(tmp_path, {**nulls, **absent}) == request_of(tmp_path, absent)


@pytest.mark.parametrize(
    "line",
    [
        b'{"prompt": "x", "note": 1, "note": 2}',
        b'{"prompt": "x", "note": {"a": 1, "a": 2}}',
        b'{"prompt": "x", "note": ' + b"9" * 5000 + b"}",
        b'{"custom_id": "c", "body": {"prompt": "x"}, "note": NaN}',
    ],
)
def test_flaws_in_keys_we_do_not_read_are_harmless(tmp_path: Path, line: bytes) -> None:
    (row,) = read(write_bytes(tmp_path, line))
    assert code_of(parser().parse(row)) == "ok"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"prompt": "a", "prompt": "b"}', "invalid_json"),
        (b'{"prompt": "a", "id": NaN}', "invalid_json"),
        (b'{"prompt": "a", "temperature": 1e400}', "bad_params"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "bad_params"),
        (b'{"messages": [{"role": "user", "content": "a", "content": "b"}]}', "invalid_json"),
        (b'{"prompt": "a", "tools": [{"x": NaN}]}', "invalid_json"),
        (b'{"custom_id": "c", "body": {"prompt": "a", "top_p": Infinity}}', "invalid_json"),
        (b'{"custom_id": "c", "custom_id": "d", "body": {"prompt": "a"}}', "invalid_json"),
    ],
)
def test_flaws_in_keys_we_read_are_error_rows(tmp_path: Path, line: bytes, code: str) -> None:
    (row,) = read(write_bytes(tmp_path, line))
    assert code_of(parser().parse(row)) == code
