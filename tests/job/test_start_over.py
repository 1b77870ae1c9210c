"""`--overwrite`, `--restart`, `--retry-errors`, `--repair-journal`: what they keep and what not."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import JournalError, OutputError, ResumeMismatchError
from nanobatch.job.run import JobResult
from nanobatch.job.stop_signal import StopSignal
from nanobatch.job_config import JobConfig, StartOver
from tests.job.null_jobs import (
    PROMPTS,
    StopAfter,
    null_config,
    read_rows,
    run_null,
    without_cached_tokens,
    write_lines,
)

BAD_ROWS = [
    {"prompt": "good", "id": 1},
    {"prompt": "word " * 3000, "id": 2},
    {"prompt": "fine", "id": 3},
    {"prompt": "", "id": 4},
    {"prompt": "well", "id": 5, "note": "kept"},
]
"""The second is too long, the fourth is empty."""


def with_flags(config: JobConfig, **flags: bool) -> JobConfig:
    return dataclasses.replace(config, start_over=StartOver(**flags))


def stop_after(config: JobConfig, num_rows: int) -> JobResult:
    stop = StopSignal()
    result = run_null(config, stop=stop, on_stats=StopAfter(num_rows, stop))
    assert result.exit_code == 75
    return result


@pytest.fixture
def config(null_model: Path, tmp_path: Path) -> JobConfig:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    return null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 4})


def other_job(config: JobConfig) -> JobConfig:
    return dataclasses.replace(config, sampling={"temperature": 0.0, "max_tokens": 3})


def test_overwrite_replaces_another_job_s_output_only_when_it_is_done(config: JobConfig) -> None:
    run_null(config)
    before = Path(config.output).read_bytes()
    other = with_flags(other_job(config), overwrite=True)
    stop_after(other, 10)
    assert Path(config.output).read_bytes() == before
    result = run_null(other)
    assert result.stats is not None
    assert result.stats.num_rows_resumed >= 10
    assert max(row["completion_tokens"] for row in read_rows(Path(config.output))) == 3


def test_overwrite_runs_a_complete_job_again(config: JobConfig) -> None:
    run_null(config)
    result = run_null(with_flags(config, overwrite=True))
    assert result.stats is not None
    assert result.stats.num_rows_resumed == 0
    assert result.num_rows == len(PROMPTS)


def test_overwrite_does_not_take_a_journal_that_it_has_not_begun(config: JobConfig) -> None:
    stop_after(config, 10)
    with pytest.raises(ResumeMismatchError, match="was begun without --overwrite"):
        run_null(with_flags(config, overwrite=True))
    assert run_null(config).exit_code == 0


def test_without_overwrite_the_old_output_is_still_refused(config: JobConfig) -> None:
    run_null(config)
    stop_after(with_flags(other_job(config), overwrite=True), 10)
    with pytest.raises(ResumeMismatchError, match="belongs to another job"):
        run_null(other_job(config))


def test_an_overwriting_run_killed_between_rename_and_summary_is_finished(
    config: JobConfig,
) -> None:
    run_null(config)
    old_summary = config.summary_path.read_bytes()
    kept = dataclasses.replace(with_flags(other_job(config), overwrite=True), keep_journal=True)
    run_null(kept)
    expected = Path(config.output).read_bytes()
    config.summary_path.write_bytes(old_summary)
    again = run_null(kept)
    assert again.stats is not None
    assert again.stats.num_rows_resumed == len(PROMPTS)
    assert Path(config.output).read_bytes() == expected


def test_restart_discards_what_is_finished(config: JobConfig) -> None:
    stop_after(config, 10)
    with pytest.raises(ResumeMismatchError, match=r"sampling\.max_tokens"):
        run_null(other_job(config))
    result = run_null(with_flags(other_job(config), restart=True))
    assert result.stats is not None
    assert result.stats.num_rows_resumed == 0
    assert max(row["completion_tokens"] for row in read_rows(Path(config.output))) == 3


def test_restart_leaves_a_complete_output_alone(config: JobConfig) -> None:
    run_null(config)
    written = Path(config.output).stat().st_mtime_ns
    assert run_null(with_flags(config, restart=True)).stats is None
    with pytest.raises(ResumeMismatchError, match="belongs to another job"):
        run_null(with_flags(other_job(config), restart=True))
    assert Path(config.output).stat().st_mtime_ns == written


def test_finished_rows_without_a_manifest_are_refused(config: JobConfig) -> None:
    stop_after(config, 10)
    (config.journal_dir / "manifest.json").unlink()
    with pytest.raises(OutputError, match="finished rows and no manifest"):
        run_null(config)
    assert run_null(with_flags(config, restart=True)).exit_code == 0


@pytest.mark.parametrize("content", ["", "[]", '{"version": 1}'])
def test_restart_asks_no_manifest_that_cannot_be_read(config: JobConfig, content: str) -> None:
    stop_after(config, 10)
    (config.journal_dir / "manifest.json").write_text(content)
    with pytest.raises((OutputError, ResumeMismatchError), match=r"manifest\.json"):
        run_null(config)
    assert run_null(with_flags(config, restart=True)).exit_code == 0


def test_repair_keeps_every_valid_record_and_runs_the_rest(config: JobConfig) -> None:
    whole = dataclasses.replace(config, output=config.output.replace("out", "whole"))
    run_null(whole)
    stopped = stop_after(config, 20)
    assert stopped.stats is not None
    segment = next(config.journal_dir.glob("*.journal"))
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(JournalError, match="damaged at byte") as refused:
        run_null(config)
    assert "--repair-journal" in str(refused.value.hint)
    repaired = run_null(with_flags(config, repair_journal=True))
    assert repaired.stats is not None
    assert repaired.stats.num_rows_resumed == stopped.stats.num_rows_done - 1
    assert without_cached_tokens(read_rows(Path(config.output))) == without_cached_tokens(
        read_rows(Path(whole.output))
    )


@pytest.fixture(params=[".jsonl", ".parquet", "/", ".jsonl.gz"])
def bad(null_model: Path, tmp_path: Path, request: pytest.FixtureRequest) -> JobConfig:
    source = write_lines(tmp_path / "bad.jsonl", BAD_ROWS)
    output = f"{tmp_path}/out{request.param}"
    return dataclasses.replace(
        null_config(null_model, source, Path(output), rows_per_part=2), output=output
    )


def rows_of(config: JobConfig) -> list[dict[str, Any]]:
    output = Path(config.output)
    files = sorted(output.glob("part-*")) if output.is_dir() else [output]
    return [row for file in files for row in read_rows(file)]


def test_retrying_runs_the_error_rows_of_a_complete_output_again(bad: JobConfig) -> None:
    """The journal is gone by then: the good rows come back from the output."""
    assert run_null(bad).exit_code == 3
    before = rows_of(bad)
    assert not bad.journal_dir.exists()
    longer = dataclasses.replace(bad.engine, long_prompts="truncate-left")
    retry = with_flags(dataclasses.replace(bad, engine=longer), retry_errors=True)
    result = run_null(retry)
    assert (result.exit_code, result.num_rows) == (3, len(BAD_ROWS))
    assert result.stats is not None
    assert (result.stats.num_rows_resumed, result.stats.num_rows_error) == (3, 1)
    after = rows_of(bad)
    assert [row["status"] for row in before] == ["ok", "error", "ok", "error", "ok"]
    assert [row["status"] for row in after] == ["ok", "ok", "ok", "error", "ok"]
    for place in (0, 2, 4):
        assert {**before[place], "truncated_tokens": 0} == after[place]
    summary = json.loads(bad.summary_path.read_text())
    assert summary["rows"]["errors_by_code"] == {"empty_prompt": 1}


def test_retrying_a_job_without_errors_leaves_nothing_to_do(config: JobConfig) -> None:
    run_null(config)
    assert run_null(with_flags(config, retry_errors=True)).stats is None


def test_retrying_continues_where_a_retry_was_stopped(null_model: Path, tmp_path: Path) -> None:
    """Rows whose error came again are not run a third time."""
    rows = [{"prompt": "word " * 3000} for _ in range(20)] + [{"prompt": "good"}]
    source = write_lines(tmp_path / "in.jsonl", rows)
    config = null_config(null_model, source, tmp_path / "out.jsonl")
    run_null(config)
    shorter = with_flags(
        dataclasses.replace(
            config,
            engine=dataclasses.replace(
                config.engine, long_prompts="truncate-middle", max_num_seqs=2
            ),
        ),
        retry_errors=True,
    )
    stopped = stop_after(shorter, 6)
    assert stopped.stats is not None
    assert run_null(config).stats is None  # the plain line finds its own output complete
    result = run_null(shorter)
    assert result.stats is not None
    assert result.stats.num_rows_resumed >= 6
    assert result.exit_code == 0
    assert {row["status"] for row in read_rows(Path(config.output))} == {"ok"}


def test_an_unfinished_job_s_errors_are_retried_and_its_last_records_win(
    null_model: Path, tmp_path: Path
) -> None:
    rows = [BAD_ROWS[1], *PROMPTS, BAD_ROWS[1]]
    source = write_lines(tmp_path / "in.jsonl", rows)
    config = null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 4})
    stop_after(config, 10)
    longer = dataclasses.replace(config.engine, long_prompts="truncate-left")
    refused = dataclasses.replace(config, engine=longer)
    with pytest.raises(ResumeMismatchError, match="long_prompts"):
        run_null(refused)
    result = run_null(with_flags(refused, retry_errors=True))
    assert (result.exit_code, result.num_rows) == (0, len(rows))
    assert [row["status"] for row in read_rows(Path(config.output))] == ["ok"] * len(rows)
