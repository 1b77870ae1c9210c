"""Sampling parameters: OpenAI's names, strict types, bounds, and nothing silently ignored."""

from pathlib import Path

import pytest

from nanobatch.job_config import RowConfig
from nanobatch.request import ErrorCode, Request, RowError, SamplingParams
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

PARAMETERS: list[tuple[str, object, str, object]] = [
    ("max_tokens", 5, "max_tokens", 5),
    ("max_tokens", 0, "max_tokens", 0),
    ("max_tokens", 3.0, "max_tokens", 3),
    ("max_tokens", 10**30, "max_tokens", 2**31 - 1),
    ("max_completion_tokens", 5, "max_tokens", 5),
    ("min_tokens", 2, "min_tokens", 2),
    ("temperature", 0, "temperature", 0.0),
    ("temperature", 0.5, "temperature", 0.5),
    ("top_p", 1, "top_p", 1.0),
    ("top_k", 7, "top_k", 7),
    ("top_k", 0, "top_k", None),
    ("top_k", -1, "top_k", None),
    ("top_k", 10**12, "top_k", None),
    ("min_p", 0.1, "min_p", 0.1),
    ("repetition_penalty", 1.5, "repetition_penalty", 1.5),
    ("presence_penalty", -1, "presence_penalty", -1.0),
    ("frequency_penalty", 1, "frequency_penalty", 1.0),
    ("seed", -5, "seed", -5),
    ("seed", 2**64 - 1, "seed", 2**64 - 1),
    ("n", 1, "n", 1),
    ("n", 128.0, "n", 128),
    ("ignore_eos", True, "ignore_eos", True),
    ("stop", "END", "stop", ("END",)),
    ("stop", ["a", "b"], "stop", ("a", "b")),
    ("stop", [], "stop", ()),
    ("stop_token_ids", [1, 2.0], "stop_token_ids", (1, 2)),
    ("logit_bias", {"7": -1, "3": 0.5}, "logit_bias", ((3, 0.5), (7, -1.0))),
    ("logit_bias", {"7": None}, "logit_bias", ()),
]

BAD_PARAMETERS: list[tuple[str, object, str]] = [
    ("max_tokens", "ten", "max_tokens is 'ten'; it must be an integer"),
    ("max_tokens", "10", "max_tokens is '10'; it must be an integer"),
    ("max_tokens", 2.5, "max_tokens is 2.5; it must be an integer"),
    ("max_tokens", True, "max_tokens is true; it must be an integer"),
    ("max_tokens", -3, "max_tokens is -3; it must be at least 0"),
    ("max_tokens", [1], "max_tokens is an array of 1; it must be an integer"),
    ("min_tokens", -1, "min_tokens is -1; it must be at least 0"),
    ("temperature", -1, "temperature is -1.0; it must be between 0 and 100"),
    ("temperature", True, "temperature is true; it must be a number"),
    ("temperature", "0.5", "temperature is '0.5'; it must be a number"),
    ("temperature", 10**400, "temperature is an integer of 1,329 bits; it must be a number"),
    ("top_p", 1.5, "top_p is 1.5; it must be between 0 and 1"),
    ("top_p", 0, "top_p is 0; it must be above 0 and at most 1"),
    ("top_k", -2, "top_k is -2; it must be at least 1"),
    ("min_p", 2, "min_p is 2.0; it must be between 0 and 1"),
    ("n", 0, "n is 0; it must be between 1 and 128"),
    ("n", 129, "n is 129; it must be between 1 and 128"),
    ("n", 10**12, "n is 1000000000000; it must be between 1 and 128"),
    ("n", "2", "n is '2'; it must be an integer"),
    ("n", True, "n is true; it must be an integer"),
    ("seed", 2**64, "seed is 18446744073709551616; it must fit 64 bits"),
    ("ignore_eos", 1, "ignore_eos is 1; it must be true or false"),
    ("stop", 5, "stop is 5; it must be a string or a list of strings"),
    ("stop", ["a", 5], "stop[1] is 5; it must be a string"),
    ("stop", [""], "stop holds an empty string; a stop string needs at least a character"),
    ("stop_token_ids", 5, "stop_token_ids is 5; it must be a list of token ids"),
    ("stop_token_ids", [True], "stop_token_ids[0] is true; it must be an integer"),
    (
        "stop_token_ids",
        [49_152],
        "stop_token_ids holds token id 49152; the vocabulary has 49,152",
    ),
    (
        "logit_bias",
        [1],
        "logit_bias is an array of 1; it must be an object of token ids and numbers",
    ),
    ("logit_bias", {"a": 1}, "logit_bias has the key 'a'; keys must be token ids"),
    ("logit_bias", {"-1": 1}, "logit_bias has the key '-1'; keys must be token ids"),
    ("logit_bias", {"\u0663": 1}, "logit_bias has the key '\u0663'; keys must be token ids"),
    ("logit_bias", {"5": "x"}, "logit_bias of token 5 is 'x'; it must be a number"),
    ("logit_bias", {"99999": 1}, "logit_bias holds token id 99999; the vocabulary has 49,152"),
    ("priority", "high", "priority is 'high'; it must be an integer"),
    ("priority", True, "priority is true; it must be an integer"),
    ("priority", 1.5, "priority is 1.5; it must be an integer"),
    ("priority", 2**63, "priority is 9223372036854775808; it must fit 64 bits"),
    ("priority", -(2**63) - 1, "priority is -9223372036854775809; it must fit 64 bits"),
    ("priority", 10**400, "priority is an integer of 1,329 bits; it must fit 64 bits"),
]


@pytest.mark.parametrize(("name", "value", "field", "expected"), PARAMETERS)
def test_a_parameter_is_read_in_flat_rows_and_in_bodies(
    tmp_path: Path, name: str, value: object, field: str, expected: object
) -> None:
    flat = request_of(tmp_path, {"prompt": "x", name: value})
    batch = request_of(tmp_path, body_line({"prompt": "x", name: value}))
    assert getattr(flat.params, field) == expected
    assert flat.params == batch.params == SamplingParams(**{field: expected})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value", "message"), BAD_PARAMETERS)
def test_a_wrong_type_or_value_is_bad_params_with_name_value_and_bound(
    tmp_path: Path, name: str, value: object, message: str
) -> None:
    result = parse_row(tmp_path, {"prompt": "x", name: value})
    assert result == RowError(code=ErrorCode.BAD_PARAMS, message=message)


def test_a_message_is_short_however_long_the_value_is(tmp_path: Path) -> None:
    result = parse_row(tmp_path, {"prompt": "x", "max_tokens": -int("9" * 4000)})
    assert isinstance(result, RowError)
    assert len(result.message) < 600


def test_integral_floats_are_integers_and_booleans_are_not(tmp_path: Path) -> None:
    assert request_of(tmp_path, {"prompt": "x", "max_tokens": 256.0}).params.max_tokens == 256
    assert code_of(parse_row(tmp_path, {"prompt": "x", "max_tokens": True})) == "bad_params"


def test_a_boolean_is_refused_also_after_an_equal_number(tmp_path: Path) -> None:
    rows = [{"prompt": "x", "max_tokens": value} for value in (1, True, 1.0)]
    results = parse_file(write_jsonl(tmp_path, rows))
    assert [code_of(result) for result in results] == ["ok", "bad_params", "ok"]


def test_the_two_names_of_max_tokens_must_agree(tmp_path: Path) -> None:
    agreeing = {"prompt": "x", "max_tokens": 2, "max_completion_tokens": 2}
    assert request_of(tmp_path, agreeing).params.max_tokens == 2
    result = parse_row(tmp_path, {**agreeing, "max_completion_tokens": 3})
    assert result == RowError(
        code=ErrorCode.BAD_PARAMS,
        message="max_tokens is 2 and max_completion_tokens is 3; they are one parameter",
    )


def test_a_row_goes_before_the_defaults(tmp_path: Path) -> None:
    defaults = SamplingParams(temperature=0.2, max_tokens=9, stop=("END",))
    row_parser = parser(defaults=defaults)
    silent, speaking = (
        row_parser.parse(row)
        for row in read(
            write_jsonl(tmp_path, [{"prompt": "x"}, {"prompt": "x", "max_tokens": 1, "stop": []}])
        )
    )
    assert isinstance(silent, Request)
    assert isinstance(speaking, Request)
    assert silent.params is defaults
    assert speaking.params == SamplingParams(temperature=0.2, max_tokens=1)


def test_rows_with_equal_parameters_share_one_object(tmp_path: Path) -> None:
    rows = [{"prompt": "x", "max_tokens": 1}, {"max_tokens": 1.0, "prompt": "y"}]
    first, second = parse_file(write_jsonl(tmp_path, rows))
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert first.params is second.params


def test_a_million_different_seeds_do_not_pile_up(tmp_path: Path) -> None:
    row_parser = parser()
    for row in read(write_jsonl(tmp_path, ({"prompt": "x", "seed": seed} for seed in range(3000)))):
        row_parser.parse(row)
    cached = row_parser._body._parameters._known
    assert len(cached) <= 1024


def test_a_priority_is_read_from_flat_rows_and_from_bodies(tmp_path: Path) -> None:
    assert request_of(tmp_path, {"prompt": "x", "priority": 3.0}).priority == 3
    assert request_of(tmp_path, {"prompt": "x", "priority": None}).priority == 0
    assert request_of(tmp_path, body_line({"prompt": "x", "priority": -1})).priority == -1
    assert request_of(tmp_path, body_line({"prompt": "x"})).priority == 0
    assert request_of(tmp_path, {"prompt": "x", "priority": 2**63 - 1}).priority == 2**63 - 1
    assert code_of(parse_row(tmp_path, body_line({"prompt": "x", "priority": "1"}))) == "bad_params"


def test_a_tables_column_is_a_priority_only_if_it_is_named(tmp_path: Path) -> None:
    row = {"text": "x", "priority": 4}
    table = RowConfig(prompt_column="text")
    named = RowConfig(prompt_column="text", param_columns=("priority", "n"))
    assert request_of(tmp_path, row, table).priority == 0
    assert request_of(tmp_path, row, named).priority == 4
    assert request_of(tmp_path, {**row, "priority": None, "n": 2}, named).priority == 0
    assert request_of(tmp_path, {**row, "n": 2}, named).params.n == 2
    assert code_of(parse_row(tmp_path, {**row, "priority": "high"}, named)) == "bad_params"
    path = write_bytes(tmp_path, b"text,priority\nx,7\ny,\nz,1e9\n", "rows.csv")
    from_csv = RowConfig(prompt_column="text", param_columns=("priority",))
    requests = parse_file(path, from_csv)
    assert [one.priority for one in requests if isinstance(one, Request)] == [7, 0, 1_000_000_000]


UNSUPPORTED: list[tuple[str, object, object]] = [
    ("response_format", {"type": "json_object"}, {"type": "text"}),
    ("tool_choice", "required", "auto"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}, "none"),
    ("logprobs", True, False),
    ("logprobs", 5, None),
    ("top_logprobs", 2, 0),
    ("best_of", 2, 1),
    ("suffix", "end", ""),
    ("echo", True, False),
    ("functions", [{"name": "f"}], []),
    ("function_call", {"name": "f"}, "auto"),
    ("reasoning_effort", "high", None),
    ("guided_json", {"type": "object"}, None),
    ("guided_regex", "a+", None),
    ("structured_outputs", {"choice": ["a"]}, None),
    ("add_generation_prompt", False, True),
    ("add_special_tokens", False, None),
    ("allowed_token_ids", [1, 2], []),
    ("bad_words", ["no"], []),
    ("continue_final_message", True, False),
    ("do_sample", False, True),
    ("extra_body", {"top_k": 1}, {}),
    ("include_stop_str_in_output", True, False),
    ("length_penalty", 2, 1.0),
    ("max_new_tokens", 5, None),
    ("no_repeat_ngram_size", 3, 0),
    ("num_beams", 4, 1.0),
    ("prompt_logprobs", 1, 0),
    ("skip_special_tokens", False, True),
    ("typical_p", 0.5, 1.0),
    ("use_beam_search", True, False),
]


@pytest.mark.parametrize(("name", "value", "neutral"), UNSUPPORTED)
def test_a_parameter_that_would_change_the_result_is_unsupported_never_ignored(
    tmp_path: Path, name: str, value: object, neutral: object
) -> None:
    for frame in (dict, body_line):
        refused = parse_row(tmp_path, frame({"prompt": "x", name: value}))
        assert isinstance(refused, RowError)
        assert refused.code == "unsupported"
        assert f"{name} is " in refused.message
        (harmless,) = read(write_jsonl(tmp_path, [frame({"prompt": "x", name: neutral})]))
        assert code_of(parser().parse(harmless)) == "ok"
        assert parser().passthrough(harmless).get(name) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("audio", "a.wav"), ("documents", [{"a": 1}]), ("modalities", ["text", "a"]), ("regex", "a+")],
)
def test_a_name_that_is_a_parameter_in_bodies_only_is_a_column_of_flat_rows(
    tmp_path: Path, name: str, value: object
) -> None:
    assert code_of(parse_row(tmp_path, body_line({"prompt": "x", name: value}))) == "unsupported"
    (row,) = read(write_jsonl(tmp_path, [{"prompt": "x", name: value}]))
    assert code_of(parser().parse(row)) == "ok"
    assert parser().passthrough(row) == {name: value}


def test_logprobs_says_how_to_get_them(tmp_path: Path) -> None:
    result = parse_row(tmp_path, {"prompt": "x", "logprobs": True})
    assert isinstance(result, RowError)
    assert "--logprobs" in result.message


def test_unknown_harmless_parameters_are_collected_once_with_their_place(tmp_path: Path) -> None:
    body = {"prompt": "x", "model": "m", "stream": True, "user": "u", "strange": 1}
    path = write_jsonl(tmp_path, [body_line(body), body_line({**body, "odd": 2})])
    row_parser = parser()
    assert [code_of(row_parser.parse(row)) for row in read(path)] == ["ok", "ok"]
    assert row_parser.unknown_parameters == {"strange": f"{path}:1", "odd": f"{path}:2"}


def test_unknown_parameters_are_named_so_that_a_line_of_the_log_stays_one(tmp_path: Path) -> None:
    row_parser = parser()
    path = write_jsonl(tmp_path, [body_line({"prompt": "x", "a\nerror: \x1b[2J": 1, "b" * 99: 1})])
    assert [code_of(row_parser.parse(row)) for row in read(path)] == ["ok"]
    assert [*row_parser.unknown_parameters] == ["'a\\nerror: \\x1b[2J'", f"'{'b' * 59}…"]


def test_unknown_parameters_are_bad_params_if_strict(tmp_path: Path) -> None:
    strict = RowConfig(strict=True)
    result = parse_row(tmp_path, body_line({"prompt": "x", "strange": 1}), strict)
    assert result == RowError(
        code=ErrorCode.BAD_PARAMS, message="body has an unknown parameter 'strange'"
    )
    assert code_of(parse_row(tmp_path, body_line({"prompt": "x", "model": "m"}), strict)) == "ok"
    assert code_of(parse_row(tmp_path, {"prompt": "x", "strange": 1}, strict)) == "ok"
