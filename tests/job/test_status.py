"""The status file: small, written now and then, never in a run's way."""

import json
import logging
import os
import socket
import time
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import pytest

from nanobatch.errors import OutputError
from nanobatch.job.stats import JobStats, Phase
from nanobatch.job.status import JobStatus, StatusWriter, read_status, status_path
from nanobatch.job_config import Shard

STATS = JobStats(
    phase=Phase.RUNNING,
    job_name="out.parquet",
    model_name="org/model",
    num_rows_done=61,
    num_rows_resumed=10,
    num_rows_error=2,
    error_counts={"bad_row": 2},
    num_rows_total=72,
    input_fraction=0.5,
    eta_s=250.04,
    decode_tokens_per_s_now=812.0,
    prefill_tokens_per_s_now=3310.0,
)


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def rows_done(folder: Path) -> int:
    status = read_status(folder)
    assert status is not None
    return status.rows_done


def test_the_file_holds_what_a_snapshot_says(tmp_path: Path) -> None:
    shard = Shard(index=3, num_shards=16)
    StatusWriter(status_path(tmp_path), shard=shard).update(STATS)
    status = read_status(tmp_path)
    assert status is not None
    assert replace(status, started_at=None, updated_at=None) == JobStatus(
        phase="running",
        rows_done=61,
        rows_error=2,
        rows_resumed=10,
        rows_total=72,
        input_fraction=0.5,
        eta_s=250.0,
        decode_tokens_per_s=812.0,
        prefill_tokens_per_s=3310.0,
        errors_by_code={"bad_row": 2},
        host=socket.gethostname(),
        pid=os.getpid(),
        shard="3/16",
        model="org/model",
        output="out.parquet",
    )
    for written in (status.started_at, status.updated_at):
        assert datetime.fromisoformat(str(written)).utcoffset() is not None
    assert list(tmp_path.iterdir()) == [status_path(tmp_path)]
    assert status_path(tmp_path).stat().st_size < 1000


def test_it_is_written_every_two_seconds_and_at_a_change_of_phase(tmp_path: Path) -> None:
    clock = Clock()
    writer = StatusWriter(status_path(tmp_path), clock=clock)
    seen = []
    for second, phase in (
        (0.0, Phase.LOADING),
        (0.5, Phase.RUNNING),
        (1.0, Phase.RUNNING),
        (2.4, Phase.RUNNING),
        (2.5, Phase.RUNNING),
        (2.6, Phase.FINALIZING),
    ):
        clock.now_s = 100.0 + second
        writer.update(replace(STATS, phase=phase, num_rows_done=int(second * 10)))
        seen.append(rows_done(tmp_path))
    assert seen == [0, 5, 5, 5, 25, 26]


def test_rows_per_second_are_those_of_the_last_half_minute(tmp_path: Path) -> None:
    clock = Clock()
    writer = StatusWriter(status_path(tmp_path), clock=clock)
    rates = []
    for step in range(60):
        clock.now_s += 2.0
        num_now = 20 * min(step, 30)
        writer.update(replace(STATS, num_rows_done=10 + num_now, num_rows_resumed=10))
        status = read_status(tmp_path)
        assert status is not None
        rates.append(status.rows_per_s)
    assert [rates[step] for step in (0, 1, 30, 59)] == [0.0, 10.0, 10.0, 0.0]


def test_the_end_is_written_at_once_with_its_reason(tmp_path: Path) -> None:
    writer = StatusWriter(status_path(tmp_path))
    writer.update(STATS)
    writer.close(replace(STATS, phase=Phase.STOPPED, num_rows_done=70), "SIGTERM")
    status = read_status(tmp_path)
    assert status is not None
    assert (status.phase, status.rows_done, status.stop_reason) == ("stopped", 70, "SIGTERM")
    assert status.ended_at is not None


def test_an_update_that_is_not_due_costs_next_to_nothing(tmp_path: Path) -> None:
    writer = StatusWriter(status_path(tmp_path))
    writer.update(STATS)
    best_s = min(_seconds_of_1000_updates(writer) for _ in range(20))
    assert best_s / 1000 < 2e-6


def _seconds_of_1000_updates(writer: StatusWriter) -> float:
    start = time.perf_counter()
    for _ in range(1000):
        writer.update(STATS)
    return time.perf_counter() - start


def test_a_failed_write_is_logged_once_and_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    status_path(tmp_path).mkdir()  # in the way of the rename, also for root
    (status_path(tmp_path) / "file").touch()
    writer = StatusWriter(status_path(tmp_path))
    with caplog.at_level(logging.WARNING):
        for phase in (Phase.LOADING, Phase.RUNNING):
            writer.update(replace(STATS, phase=phase))
        writer.close(STATS)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"cannot write {status_path(tmp_path)}: ")


def test_nothing_is_written_where_the_journal_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    StatusWriter(status_path(tmp_path / "out.jsonl.nanobatch")).close(STATS)
    assert (list(tmp_path.iterdir()), caplog.messages) == ([], [])


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x00", b"{", b"[]", b'{"version": 1}'])
def test_a_file_that_a_crash_left_says_nothing(tmp_path: Path, content: bytes) -> None:
    assert read_status(tmp_path) is None
    status_path(tmp_path).write_bytes(content)
    assert read_status(tmp_path) is None


def test_fields_of_a_newer_version_are_left_out_and_another_format_is_refused(
    tmp_path: Path,
) -> None:
    written = asdict(JobStatus(phase="running", rows_done=3))
    status_path(tmp_path).write_text(json.dumps({**written, "invented": 1}))
    assert read_status(tmp_path) == JobStatus(phase="running", rows_done=3)
    status_path(tmp_path).write_text(json.dumps({**written, "version": 2}))
    with pytest.raises(OutputError, match="has version 2; this nanobatch reads 1"):
        read_status(tmp_path)
