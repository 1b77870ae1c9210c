"""`--retry-errors` beside journals of every kind: kept, of another job, damaged, of a retry."""

import dataclasses
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import OutputError, ResumeMismatchError
from nanobatch.job.run import JobResult
from nanobatch.job.stats import JobStats, Phase
from nanobatch.job.stop_signal import StopSignal
from nanobatch.job_config import JobConfig, StartOver
from tests.job.null_jobs import StopAfter, null_config, read_rows, run_null, write_lines

TOO_LONG = {"prompt": "word " * 40}
ROWS: list[dict[str, Any]] = [{"prompt": "good"}, TOO_LONG, {"prompt": "fine"}, {"prompt": ""}]


def job(model: Path, source: Path, output: Path, **options: Any) -> JobConfig:
    engine = {"max_num_seqs": 2, "max_model_len": 40}
    return null_config(model, source, output, engine=engine, **options)


@pytest.fixture
def config(null_model: Path, tmp_path: Path) -> JobConfig:
    return job(null_model, write_lines(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl")


def retried(config: JobConfig, *, cut: bool = True, **flags: bool) -> JobConfig:
    """Return the job with its errors run again, too long prompts cut."""
    engine = dataclasses.replace(config.engine, long_prompts="truncate-left" if cut else "error")
    start_over = StartOver(retry_errors=True, **flags)
    return dataclasses.replace(config, engine=engine, start_over=start_over)


def overwriting(config: JobConfig) -> JobConfig:
    """Return another job that replaces the output."""
    sampling = {"temperature": 0.0, "max_tokens": 3}
    start_over = StartOver(overwrite=True)
    return dataclasses.replace(config, sampling=sampling, start_over=start_over)


def stop_after(config: JobConfig, num_rows: int) -> None:
    stop = StopSignal()
    assert run_null(config, stop=stop, on_stats=StopAfter(num_rows, stop)).exit_code == 75


def stop_when_finalizing(config: JobConfig) -> None:
    """Stop a run whose rows are all recorded."""
    stop = StopSignal()

    def look(stats: JobStats) -> None:
        if stats.phase is Phase.FINALIZING:
            stop.received = signal.SIGTERM

    assert run_null(config, stop=stop, on_stats=look).exit_code == 75


def statuses(config: JobConfig) -> list[str]:
    return [row["status"] for row in read_rows(Path(config.output))]


@pytest.mark.parametrize("num_finished", [2, len(ROWS)])
def test_the_journal_of_a_job_that_is_to_replace_the_output_is_left_alone(
    config: JobConfig, num_finished: int
) -> None:
    """Its answers are to the same rows, and not this job's."""
    run_null(config)
    output = Path(config.output).read_bytes()
    other = overwriting(config)
    if num_finished < len(ROWS):
        stop_after(other, num_finished)
    else:
        stop_when_finalizing(other)
    segments = [path.read_bytes() for path in config.journal_dir.glob("*.journal")]
    with pytest.raises(ResumeMismatchError, match="an unfinished run that is to replace"):
        run_null(retried(config))
    assert Path(config.output).read_bytes() == output
    assert [path.read_bytes() for path in config.journal_dir.glob("*.journal")] == segments
    assert run_null(other).exit_code == 3


def test_a_kept_journal_can_be_retried_again_and_again(config: JobConfig) -> None:
    kept = dataclasses.replace(config, keep_journal=True)
    run_null(kept)
    run_null(retried(kept, cut=False))
    assert statuses(config) == ["ok", "error", "ok", "error"]
    run_null(retried(kept))
    assert statuses(config) == ["ok", "ok", "ok", "error"]


def test_a_kept_journal_with_damage_gives_way_to_the_output(config: JobConfig) -> None:
    kept = dataclasses.replace(config, keep_journal=True)
    run_null(kept)
    segment = next(config.journal_dir.glob("*.journal"))
    damaged = bytearray(segment.read_bytes())
    damaged[60] ^= 1
    segment.write_bytes(damaged)
    run_null(retried(kept, repair_journal=True))
    assert statuses(config) == ["ok", "ok", "ok", "error"]


def test_a_retry_of_errors_only_keeps_its_rows_when_its_first_run_had_none(
    null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", [TOO_LONG] * 20)
    config = job(null_model, source, tmp_path / "out.jsonl")
    run_null(config)
    stop_after(retried(config), 0)
    stop_after(retried(config), 5)
    result = run_null(retried(config))
    assert result.stats is not None
    assert result.stats.num_rows_resumed >= 5
    assert statuses(config) == ["ok"] * 20


def test_a_retry_that_is_changed_begins_anew(null_model: Path, tmp_path: Path) -> None:
    """What came out as an error under the old setting has not met the new one."""
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "good"}, *[TOO_LONG] * 8])
    config = job(null_model, source, tmp_path / "out.jsonl")
    run_null(config)
    stop_when_finalizing(retried(config, cut=False))
    assert run_null(retried(config)).exit_code == 0
    assert statuses(config) == ["ok"] * 9


def test_an_output_with_other_rows_than_the_inputs_is_refused(config: JobConfig) -> None:
    """It has the size that its run wrote: two of its lines changed places."""
    run_null(config)
    lines = Path(config.output).read_bytes().splitlines(keepends=True)
    Path(config.output).write_bytes(b"".join([lines[2], lines[1], lines[0], lines[3]]))
    with pytest.raises(OutputError, match="has other rows than the inputs"):
        run_null(retried(config))


Pipe = Callable[[JobConfig, Sequence[dict[str, Any]]], JobResult]


@pytest.fixture
def piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipe:
    """Runs a job whose standard input holds these rows."""

    def run(config: JobConfig, rows: Sequence[dict[str, Any]]) -> JobResult:
        with write_lines(tmp_path / "stdin", rows).open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            return run_null(dataclasses.replace(config, inputs=("-",)))

    return run


def test_another_standard_input_leaves_nothing_in_the_way_of_the_right_one(
    config: JobConfig, piped: Pipe
) -> None:
    piped(config, ROWS)
    for other in (ROWS[:2], [*ROWS, *ROWS], [{"prompt": "x"}]):
        with pytest.raises(ResumeMismatchError, match="answers another standard input"):
            piped(retried(config), other)
    assert piped(retried(config), ROWS).exit_code == 3
    assert statuses(config) == ["ok", "ok", "ok", "error"]
    summary = json.loads(config.summary_path.read_text())
    assert summary["rows"]["errors_by_code"] == {"empty_prompt": 1}


def test_a_job_without_errors_is_told_from_another_standard_input(
    config: JobConfig, piped: Pipe
) -> None:
    piped(config, ROWS[:1])
    assert piped(retried(config, cut=False), ROWS[:1]).stats is None
    with pytest.raises(ResumeMismatchError, match="answers another standard input"):
        piped(retried(config, cut=False), ROWS[2:3])
