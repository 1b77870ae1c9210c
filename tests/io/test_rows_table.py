"""Tables: a template or a column is the prompt, and columns are data unless named."""

from pathlib import Path

import pytest

from nanobatch.errors import ConfigError
from nanobatch.job_config import RowConfig
from nanobatch.request import ErrorCode, Request, RowError, SamplingParams
from tests.io.row_files import (
    code_of,
    parse_file,
    parse_row,
    parser,
    read,
    request_of,
    write_bytes,
    write_jsonl,
)


def test_a_template_is_rendered_with_the_row_s_columns(tmp_path: Path) -> None:
    config = RowConfig(template="Summarise: {{ text }} ({{ year }})", system="Be brief.")
    request = request_of(tmp_path, {"text": "a story", "year": None}, config)
    assert request.prompt == "Summarise: a story ()"
    assert (request.is_user_turn, request.system) == (True, "Be brief.")


def test_raw_sends_a_template_s_prompt_as_it_is(tmp_path: Path) -> None:
    config = RowConfig(template="Q: {{ q }} A:", raw=True, system="unused")
    request = request_of(tmp_path, {"q": "why"}, config)
    assert (request.prompt, request.is_user_turn, request.system) == ("Q: why A:", False, None)


def test_an_undefined_name_is_an_error_of_the_row(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"other": "b"}]
    good, bad = parse_file(write_jsonl(tmp_path, rows), RowConfig(template="{{ text }}"))
    assert code_of(good) == "ok"
    assert bad == RowError(
        code=ErrorCode.TEMPLATE_ERROR, message="template: UndefinedError: 'text' is undefined"
    )


def test_a_template_that_renders_to_nothing_is_an_empty_prompt(tmp_path: Path) -> None:
    result = parse_row(tmp_path, {"text": None}, RowConfig(template="{{ text }}"))
    assert result == RowError(code=ErrorCode.EMPTY_PROMPT, message="the rendered template is empty")


def test_a_prompt_column_is_a_user_turn(tmp_path: Path) -> None:
    request = request_of(tmp_path, {"q": "why", "prompt": "data"}, RowConfig(prompt_column="q"))
    assert (request.prompt, request.is_user_turn) == ("why", True)


@pytest.mark.parametrize(
    ("row", "code", "message"),
    [
        ({}, "missing_prompt", "row has no column 'q'"),
        ({"q": None}, "missing_prompt", "q is null"),
        ({"q": ""}, "empty_prompt", "q is empty"),
        ({"q": 5}, "bad_type", "q is 5; it must be a string"),
    ],
)
def test_a_prompt_column_at_fault_says_how(
    tmp_path: Path, row: dict[str, object], code: str, message: str
) -> None:
    result = parse_row(tmp_path, row, RowConfig(prompt_column="q"))
    assert isinstance(result, RowError)
    assert (result.code, result.message) == (code, message)


def test_a_column_may_have_an_empty_name(tmp_path: Path) -> None:
    request = request_of(tmp_path, {"": "x", "prompt": "y"}, RowConfig(prompt_column=""))
    assert request.prompt == "x"


def test_a_messages_column_holds_chats_or_json_text(tmp_path: Path) -> None:
    config = RowConfig(messages_column="chat", system="Be brief.")
    expected = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"})
    as_list = request_of(tmp_path, {"chat": [{"role": "user", "content": "hi"}]}, config)
    as_text = request_of(tmp_path, {"chat": '[{"role": "user", "content": "hi"}]'}, config)
    assert as_list.messages == as_text.messages == expected


def test_no_column_of_a_table_is_a_parameter_unless_named(tmp_path: Path) -> None:
    row = {"q": "why", "temperature": "warm", "max_tokens": 5, "response_format": "x", "n": 3}
    ignoring = request_of(tmp_path, row, RowConfig(prompt_column="q"))
    assert ignoring.params == SamplingParams()
    config = RowConfig(prompt_column="q", param_columns=("max_tokens",))
    assert request_of(tmp_path, row, config).params == SamplingParams(max_tokens=5)
    naming = RowConfig(prompt_column="q", param_columns=("temperature",))
    assert code_of(parse_row(tmp_path, row, naming)) == "bad_params"


def test_priority_may_be_a_parameter_column(tmp_path: Path) -> None:
    config = RowConfig(prompt_column="q", param_columns=("priority",))
    assert request_of(tmp_path, {"q": "why", "priority": 2}, config).priority == 2


def test_numbers_are_parsed_for_parameter_columns_of_a_csv(tmp_path: Path) -> None:
    config = RowConfig(template="{{ max_tokens }}", param_columns=("max_tokens",))
    path = write_bytes(tmp_path, b"max_tokens\n16\n", "a.csv")
    (request,) = parse_file(path, config)
    assert isinstance(request, Request)
    assert (request.prompt, request.params.max_tokens) == ("16", 16)


def test_a_parameter_column_that_is_no_parameter_is_refused_with_the_closest_match() -> None:
    with pytest.raises(ConfigError) as caught:
        parser(RowConfig(prompt_column="q", param_columns=("max_token",)))
    assert caught.value.hint == "did you mean max_tokens?"


def test_all_columns_of_a_table_pass_through_except_its_id(tmp_path: Path) -> None:
    row_parser = parser(RowConfig(prompt_column="prompt", param_columns=("seed",)))
    (row,) = read(write_jsonl(tmp_path, [{"id": "a", "prompt": "x", "seed": 1, "body": {}}]))
    assert row_parser.row_id(row) == "a"
    assert row_parser.passthrough(row) == {"prompt": "x", "seed": 1, "body": {}}


def test_a_line_of_text_is_a_user_turn(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"hello\n", "a.txt")
    (request,) = parse_file(path, RowConfig(system="Be brief."))
    assert isinstance(request, Request)
    assert (request.prompt, request.is_user_turn) == ("hello", True)
    assert request.system == "Be brief."
    (raw,) = parse_file(path, RowConfig(raw=True))
    assert isinstance(raw, Request)
    assert (raw.prompt, raw.is_user_turn) == ("hello", False)


def test_a_line_of_text_can_be_put_into_a_template(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"hello\n", "a.txt")
    (request,) = parse_file(path, RowConfig(template="Translate: {{ text }}"))
    assert isinstance(request, Request)
    assert request.prompt == "Translate: hello"


def test_only_flaws_in_columns_that_a_template_names_are_errors(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b'{"text": "a", "score": NaN, "prompt": 1, "prompt": 2}\n')
    naming, ignoring, whole = (
        parse_file(path, RowConfig(template=template))[0]
        for template in ("{{ score }}", "{{ text }}", '{{ row["text"] }}')
    )
    assert naming == RowError(
        code=ErrorCode.INVALID_JSON, message="score holds NaN, which is not JSON"
    )
    assert code_of(ignoring) == "ok"
    assert code_of(whole) == "invalid_json"
