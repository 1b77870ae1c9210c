"""Runs that stop because so many rows are errors."""

import dataclasses
from pathlib import Path

import pytest

from nanobatch.errors import TooManyErrorsError
from nanobatch.job_config import JobConfig, StartOver
from tests.job.null_jobs import null_config, read_rows, run_null, write_lines

EMPTY: dict[str, object] = {"prompt": ""}
GOOD: dict[str, object] = {"prompt": "good"}


def job(model: Path, folder: Path, rows: list[dict[str, object]]) -> JobConfig:
    source = write_lines(folder / "in.jsonl", rows)
    return null_config(
        model,
        source,
        folder / "out.jsonl",
        sampling={"max_tokens": 1, "temperature": 0.0},
        engine={"max_model_len": 64},
    )


def test_a_run_whose_first_thousand_rows_are_all_errors_stops(
    null_model: Path, tmp_path: Path
) -> None:
    config = job(null_model, tmp_path, [{"prompt": ""}] * 3000)
    with pytest.raises(TooManyErrorsError) as stopped:
        run_null(config)
    assert stopped.value.exit_code == 1
    assert "rows are all errors" in stopped.value.message
    assert "empty_prompt" in stopped.value.message
    assert config.journal_dir.exists()
    with pytest.raises(TooManyErrorsError):  # the same line finds the same
        run_null(config)
    expected = dataclasses.replace(config, max_errors=None)
    assert run_null(expected).exit_code == 0
    assert len(read_rows(Path(config.output))) == 3000


@pytest.mark.parametrize("num_good_rows", [0, 1, 500])
def test_good_rows_right_after_the_first_thousand_do_not_make_up_for_them(
    num_good_rows: int, null_model: Path, tmp_path: Path
) -> None:
    rows = [EMPTY] * 1000 + [GOOD] * num_good_rows
    with pytest.raises(TooManyErrorsError, match="the first 1,000 rows are all errors"):
        run_null(job(null_model, tmp_path, rows))


def test_a_good_row_is_found_among_the_first_thousand_of_several_runs(
    null_model: Path, tmp_path: Path
) -> None:
    config = job(null_model, tmp_path, [EMPTY] * 999 + [GOOD] + [EMPTY] * 1000)
    with pytest.raises(TooManyErrorsError, match="--stop-after-errors is 300"):
        run_null(dataclasses.replace(config, stop_after_errors=300))
    assert run_null(config).exit_code == 3


def test_one_good_row_among_the_first_lets_a_run_go_on(null_model: Path, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": "" if index else "good"} for index in range(1500)]
    assert run_null(job(null_model, tmp_path, rows)).exit_code == 3


def test_a_good_row_that_takes_longer_than_the_errors_around_it_counts_too(
    null_model: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": "" if index else "good", "max_tokens": 40} for index in range(1500)
    ]
    assert run_null(job(null_model, tmp_path, rows)).exit_code == 3


def test_a_short_job_of_errors_only_ends_with_three(null_model: Path, tmp_path: Path) -> None:
    assert run_null(job(null_model, tmp_path, [{"prompt": ""}] * 999)).exit_code == 3


def test_a_run_stops_after_so_many_errors_and_keeps_what_is_finished(
    null_model: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": "" if index % 10 == 0 else f"row {index}"} for index in range(1000)
    ]
    config = dataclasses.replace(job(null_model, tmp_path, rows), window_rows=50)
    limited = dataclasses.replace(config, stop_after_errors=5)
    with pytest.raises(TooManyErrorsError, match="--stop-after-errors is 5"):
        run_null(limited)
    result = run_null(config)
    assert (result.exit_code, result.num_rows) == (3, 1000)
    assert result.stats is not None
    assert result.stats.num_rows_resumed >= 5


TOO_LONG: dict[str, object] = {"prompt": "word " * 40}


def test_rows_that_the_engine_refuses_stop_a_run_before_it_has_read_them_all(
    null_model: Path, tmp_path: Path
) -> None:
    """They never wait for the engine, so they fill no window."""
    config = job(null_model, tmp_path, [TOO_LONG] * 1500)
    with pytest.raises(TooManyErrorsError, match="the first 1,000 rows are all errors"):
        run_null(config)


def test_errors_that_are_run_again_do_not_stop_the_run_that_does_so(
    null_model: Path, tmp_path: Path
) -> None:
    """The hint of `--stop-after-errors` names `--retry-errors`, so that must get further."""
    rows = [TOO_LONG] * 300 + [{"prompt": ""}] * 9
    config = dataclasses.replace(job(null_model, tmp_path, rows), stop_after_errors=200)
    with pytest.raises(TooManyErrorsError):
        run_null(config)
    retry = dataclasses.replace(
        config,
        engine=dataclasses.replace(config.engine, long_prompts="truncate-left"),
        start_over=StartOver(retry_errors=True),
    )
    with pytest.raises(TooManyErrorsError, match=r"are errors \(9 empty_prompt\)"):
        run_null(dataclasses.replace(retry, stop_after_errors=5))
    assert run_null(retry).exit_code == 3
