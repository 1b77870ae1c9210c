"""Whether a job runs, stopped, died or finished, told from its files and their times."""

import json
import os
from dataclasses import replace
from pathlib import Path

from nanobatch.io.journal_record import encode_record
from nanobatch.io.journal_segment import SEGMENT_HEADER, segment_path
from nanobatch.job.observe import JobState, ObservedJob, file_system_clock, observe_job
from nanobatch.job.stats import Phase
from nanobatch.job.status import StatusWriter, status_path
from tests.io.output_strategies import record
from tests.job.test_status import STATS

NOW_S = 1_800_000_000.0
SUMMARY = {
    "finished_at": "2026-11-29T20:00:00+0000",
    "model": "org/model",
    "output": "out.jsonl",
    "rows": {"total": 72, "error": 1, "errors_by_code": {"bad_row": 1}, "from_earlier_runs": 9},
}


def begin(folder: Path, *, name: str = "out.jsonl") -> tuple[str, StatusWriter, Path]:
    """Return a job's output, its status writer and its journal's folder."""
    journal = folder / f"{name}.nanobatch"
    journal.mkdir()
    return str(folder / name), StatusWriter(status_path(journal)), journal


def touch_all(folder: Path, changed_s: float) -> None:
    """Let everything in a folder have changed at this time."""
    for path in [*folder.iterdir(), folder]:
        os.utime(path, (changed_s, changed_s))


def observe(output: str) -> ObservedJob:
    job = observe_job(output, clock=lambda _folder: NOW_S)
    assert job is not None
    return job


def write_summary(output: str, changed_s: float) -> None:
    path = Path(f"{output}.summary.json")
    path.write_text(json.dumps(SUMMARY))
    os.utime(path, (changed_s, changed_s))


def test_a_job_of_which_no_file_tells_is_none(tmp_path: Path) -> None:
    assert observe_job(str(tmp_path / "out.jsonl")) is None
    (tmp_path / "out.jsonl.nanobatch").mkdir()
    assert observe_job(str(tmp_path / "out.jsonl")) is None


def test_a_job_runs_while_its_files_change(tmp_path: Path) -> None:
    output, writer, journal = begin(tmp_path)
    writer.update(STATS)
    touch_all(journal, NOW_S - 29)
    job = observe(output)
    assert (job.state, job.age_s, job.status.rows_done) == (JobState.RUNNING, 29.0, 61)


def test_a_job_without_a_sign_of_life_is_dead(tmp_path: Path) -> None:
    output, writer, journal = begin(tmp_path)
    writer.update(STATS)
    touch_all(journal, NOW_S - 720)
    job = observe(output)
    assert (job.state, job.age_s, job.status.pid) == (JobState.DEAD, 720.0, os.getpid())


def test_a_heartbeat_in_a_silent_phase_is_a_sign_of_life(tmp_path: Path) -> None:
    output, writer, journal = begin(tmp_path)
    writer.update(replace(STATS, phase=Phase.LOADING))
    (journal / "lock").touch()
    touch_all(journal, NOW_S - 720)
    os.utime(journal / "lock", (NOW_S - 4, NOW_S - 4))
    job = observe(output)
    assert (job.state, job.age_s) == (JobState.RUNNING, 4.0)


def test_a_clock_that_is_behind_the_files_gives_no_negative_age(tmp_path: Path) -> None:
    output, writer, journal = begin(tmp_path)
    writer.update(STATS)
    touch_all(journal, NOW_S + 500)
    assert observe(output).age_s == 0.0


def test_a_stopped_job_stays_stopped_however_long_ago(tmp_path: Path) -> None:
    output, writer, journal = begin(tmp_path)
    writer.close(replace(STATS, phase=Phase.STOPPED), "SIGTERM")
    touch_all(journal, NOW_S - 1e6)
    job = observe(output)
    assert (job.state, job.age_s) == (JobState.STOPPED, None)
    assert job.status.stop_reason == "SIGTERM"


def test_a_failed_job_is_stopped_by_its_error_whatever_its_phase(tmp_path: Path) -> None:
    output, writer, _ = begin(tmp_path)
    writer.close(replace(STATS, phase=Phase.FINISHED), "cannot write out.jsonl.summary.json")
    assert observe(output).state is JobState.STOPPED


def test_a_finished_job_is_told_from_its_summary(tmp_path: Path) -> None:
    output = str(tmp_path / "out.jsonl")
    write_summary(output, NOW_S)
    job = observe(output)
    assert (job.state, job.age_s) == (JobState.FINISHED, None)
    status = job.status
    assert (status.rows_done, status.rows_total, status.rows_error) == (72, 72, 1)
    assert (status.errors_by_code, status.rows_resumed) == ({"bad_row": 1}, 9)
    assert (status.model, status.phase) == ("org/model", "finished")


def test_a_journal_that_is_kept_or_left_by_a_kill_does_not_hide_that_a_job_finished(
    tmp_path: Path,
) -> None:
    output, writer, journal = begin(tmp_path)
    writer.update(replace(STATS, phase=Phase.FINALIZING))
    touch_all(journal, NOW_S - 2)
    write_summary(output, NOW_S - 1)
    assert observe(output).state is JobState.FINISHED
    writer.close(replace(STATS, phase=Phase.FINISHED))
    touch_all(journal, NOW_S)
    assert observe(output).state is JobState.FINISHED


def test_a_run_that_replaces_a_finished_output_is_what_is_told(tmp_path: Path) -> None:
    output, writer, journal = begin(tmp_path)
    write_summary(output, NOW_S - 1000)
    writer.update(STATS)
    touch_all(journal, NOW_S - 1)
    assert (observe(output).state, observe(output).status.rows_done) == (JobState.RUNNING, 61)


def test_the_journal_is_counted_where_there_is_no_status(tmp_path: Path) -> None:
    output, _, journal = begin(tmp_path)
    records = b"".join(encode_record(record(row)) for row in range(5))
    segment_path(journal, 1).write_bytes(SEGMENT_HEADER + records + b"torn")
    touch_all(journal, NOW_S - 90)
    job = observe(output)
    assert (job.state, job.status.rows_done, job.status.rows_total) == (JobState.DEAD, 5, None)
    assert segment_path(journal, 1).read_bytes().endswith(b"torn")


def test_the_clock_is_that_of_the_file_system(tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.touch()
    now_s = file_system_clock(tmp_path)
    after = tmp_path / "after"
    after.touch()
    assert before.stat().st_mtime <= now_s <= after.stat().st_mtime
    assert sorted(tmp_path.iterdir()) == [after, before]
    assert file_system_clock(tmp_path / "missing") > 0
