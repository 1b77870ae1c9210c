"""Runs that stop because so many rows are errors."""

import dataclasses
from pathlib import Path

import pytest

from nanobatch.errors import TooManyErrorsError
from nanobatch.job_config import JobConfig
from tests.job.null_jobs import null_config, read_rows, run_null, write_lines


def job(model: Path, folder: Path, rows: list[dict[str, object]]) -> JobConfig:
    source = write_lines(folder / "in.jsonl", rows)
    return null_config(
        model, source, folder / "out.jsonl", sampling={"max_tokens": 1, "temperature": 0.0}
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


def test_one_good_row_among_the_first_lets_a_run_go_on(null_model: Path, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": "" if index else "good"} for index in range(1500)]
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
