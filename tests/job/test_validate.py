"""A dry run finds what a run would refuse, in order, and counts what prompts share."""

from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import ConfigError, InputError
from nanobatch.job import validate
from nanobatch.job.validate import ValidationReport, validate_job
from nanobatch.request import RowError
from tests.job.null_jobs import null_config, read_rows, run_null, write_lines


def check(
    model: Path, source: Path, **options: Any
) -> tuple[ValidationReport, list[tuple[str, RowError]]]:
    errors: list[tuple[str, RowError]] = []
    config = null_config(model, source, Path("-"), **options)
    report = validate_job(config, on_error=lambda place, error: errors.append((place, error)))
    return report, errors


def test_a_dry_run_finds_the_errors_of_the_run(null_model: Path, tmp_path: Path) -> None:
    lines = [
        '{"prompt": "good"}',
        '{"prompt": "cut off',
        "",
        '{"input_ids": [5, 999]}',
        '{"messages": [{"role": "user"}]}',
        '{"prompt": "x", "temperature": "hot"}',
        '{"prompt": "x", "stop_token_ids": [100000]}',
        '{"input_ids": ' + str([5] * 2048) + "}",
        '{"custom_id": "a", "body": {"prompt": "x"}}',
        '{"custom_id": "a", "body": {"prompt": "x"}}',
        '{"prompt": ""}',
        '{"prompt": "last"}',
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines))
    report, errors = check(null_model, source)
    run_null(null_config(null_model, source, tmp_path / "out.jsonl"))
    rows = [row for row in read_rows(tmp_path / "out.jsonl") if row["status"] == "error"]
    assert [(error.code.value, f"{place}: {error.message}") for place, error in errors] == [
        (row["error_code"], row["error_message"]) for row in rows
    ]
    assert (report.num_rows, report.num_errors) == (11, len(rows)) == (11, 8)
    assert sum(report.prompt_lengths.values()) == 3
    assert report.first_prompt == "good"


def test_a_portion_boundary_changes_nothing(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": "x" * (1 + row % 40)} if row % 5 else {"prompt": ""} for row in range(60)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    whole, errors = check(null_model, source)
    monkeypatch.setattr(validate, "PORTION_ROWS", 7)
    pieces, errors_of_pieces = check(null_model, source)
    assert pieces == whole
    assert errors_of_pieces == errors
    assert len(errors) == 12


@pytest.mark.parametrize(
    ("prompts", "num_shared"),
    [
        ([[1] * 16, [1] * 16], 16),
        ([[1] * 15, [1] * 15], 0),
        ([[1] * 47, [1] * 47], 32),
        ([[1] * 48, [1] * 33], 32),
        ([[1] * 16 + [2] * 16, [2] * 16, [2] * 16], 16),
        ([[1] * 16 + [2] * 16, [3] * 16 + [2] * 16], 0),
        ([[1] * 16 + [2] * 16, [1] * 16 + [3] * 16, [1] * 16 + [3] * 17], 16 + 32),
        ([[1] * 64], 0),
    ],
)
def test_shared_tokens_are_those_in_full_blocks_of_an_earlier_beginning(
    prompts: list[list[int]], num_shared: int, null_model: Path, tmp_path: Path
) -> None:
    rows = [{"input_ids": [30 + token for token in prompt]} for prompt in prompts]
    report, _ = check(null_model, write_lines(tmp_path / "in.jsonl", rows))
    assert report.sharing is not None
    assert report.sharing.num_reused_tokens == num_shared
    assert report.num_prompt_tokens == sum(map(len, prompts))


def test_shared_tokens_are_those_that_a_run_finds_in_its_cache(
    null_model: Path, tmp_path: Path
) -> None:
    """Rows part at their first own token, and each goes on to the end of the block."""
    beginnings = [[60] * 5, [70] * 16, [80] * 40, [90] * 3]
    rows = [
        {"input_ids": beginnings[row % 4] + [100 + row] + [50] * (16 + row)} for row in range(40)
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    report, _ = check(null_model, source)
    run_null(null_config(null_model, source, tmp_path / "out.jsonl"))
    cached = sum(row["cached_tokens"] for row in read_rows(tmp_path / "out.jsonl"))
    assert report.sharing is not None
    assert report.sharing.num_prefill_tokens == report.num_prompt_tokens - cached
    # 3 tokens are not worth a copy.
    assert cached == 9 * (5 + 16 + 40)
    assert report.sharing.num_near_tokens == 9 * (16 + 32)


@pytest.mark.parametrize(
    ("params", "num_tokens"),
    [
        ({}, 256),
        ({"max_tokens": 9}, 9),
        ({"max_tokens": 700}, 256),
        ({"max_tokens": 700, "min_tokens": 300}, 300),
        ({"max_tokens": 700, "ignore_eos": True}, 700),
        ({"max_tokens": 0}, 1),
    ],
)
def test_decode_steps_go_by_the_length_that_an_answer_is_taken_to_have(
    params: dict[str, Any], num_tokens: int, null_model: Path, tmp_path: Path
) -> None:
    prompts = [{"input_ids": [60] * 40 + [row], "n": 2, **params} for row in (70, 80)]
    report, _ = check(null_model, write_lines(tmp_path / "in.jsonl", prompts), sampling={})
    assert report.sharing is not None
    keys_of_steps = [41 + step for step in range(1, num_tokens)]
    assert report.sharing.num_attended_tokens == 2 * 2 * sum(keys_of_steps)
    # Two full blocks, read once for the four answers.
    assert report.sharing.num_saved_kv_tokens == 3 * 32 * (num_tokens - 1)
    assert report.sharing.num_output_tokens == 256


def test_rows_beyond_the_look_ahead_are_not_near(null_model: Path, tmp_path: Path) -> None:
    prompts = [{"input_ids": [60 + row % 3] * 40} for row in range(9)]
    source = write_lines(tmp_path / "in.jsonl", prompts)
    for window, num_near in (({"window_rows": 3}, 0), ({"window_rows": 4}, 6)):
        report, _ = check(null_model, source, **window)
        assert report.sharing is not None
        assert report.sharing.num_reused_tokens == 6 * 32
        assert report.sharing.num_prefill_tokens == 9 * 40 - num_near * 32
    report, _ = check(null_model, source, window_tokens=4 * 40 - 1)
    assert report.sharing is not None
    assert report.sharing.num_prefill_tokens == 9 * 40


def test_the_first_good_prompt_is_shown_as_the_model_sees_it(
    null_model: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": ""},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"prompt": "b"},
    ]
    report, _ = check(null_model, write_lines(tmp_path / "in.jsonl", rows))
    assert report.first_prompt == "<|turn|>user\nhi<|eos|><|turn|>assistant\n"
    of_ids, _ = check(null_model, write_lines(tmp_path / "ids.jsonl", [{"input_ids": [60, 61]}]))
    assert of_ids.first_prompt is not None
    assert len(of_ids.first_prompt) == 2


def test_long_prompts_are_cut_as_the_run_cuts_them(null_model: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "the good " * 3000}, {"input_ids": [60] * 2048}]
    source = write_lines(tmp_path / "in.jsonl", rows)
    options: dict[str, Any] = {"engine": {"long_prompts": "truncate-left"}}
    report, errors = check(null_model, source, **options)
    assert errors == []
    # The answers of null_config have 12 tokens at most, and the context has 2,048.
    assert report.prompt_lengths == {2036: 2}
    assert report.first_prompt is not None
    assert ("the good " * 3000).endswith(report.first_prompt)
    assert len(check(null_model, source)[1]) == 2


def test_a_table_is_checked_with_its_template(null_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("review,stars\ngood,5\nbad\n")
    report, errors = check(
        null_model, source, rows={"template": "Is it? {{ review }}", "system": "be brief"}
    )
    assert report.first_prompt == (
        "<|turn|>system\nbe brief<|eos|><|turn|>user\nIs it? good<|eos|><|turn|>assistant\n"
    )
    assert [(place, error.code.value) for place, error in errors] == [(f"{source}:3", "bad_row")]


def test_what_a_run_would_refuse_is_refused(null_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        check(null_model, tmp_path / "missing.jsonl")
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}])
    with pytest.raises(ConfigError, match="the model's context is 2,048"):
        check(null_model, source, engine={"max_model_len": 4096})


def test_an_empty_file_is_an_empty_report(null_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("")
    report, errors = check(null_model, source)
    assert (report, errors) == (ValidationReport(), [])
