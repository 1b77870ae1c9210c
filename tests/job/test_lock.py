"""One holder at a time, and what a holder may do that lost the lock or released it."""

import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import LockLostError, OutputError, Stopped
from nanobatch.io.journal import open_journal
from nanobatch.io.journal_writer import JournalWriter
from nanobatch.job.lock import LOCK_NAME, output_lock
from nanobatch.job.lock_claim import LockTimes
from nanobatch.job.lock_holder import LockHolder, parse_holder
from nanobatch.job.stop_signal import StopSignal
from tests.io.output_strategies import record

TIMES = LockTimes(beat_interval_s=0.02, stale_after_s=0.4, poll_interval_s=0.02, settle_s=0.05)
BETWEEN_BEATS_S = 0.2


@pytest.fixture
def journal_dir(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl.nanobatch"


def fields(journal_dir: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((journal_dir / LOCK_NAME).read_bytes())
    return values


def take_over(journal_dir: Path) -> bytes:
    """Do to a held lock what another host does that takes it for stale; return the content."""
    winner = replace(LockHolder.of_this_process(), host="node7", boot_id="another", pid=123)
    with (journal_dir / LOCK_NAME).open("r+b") as file:
        file.write(winner.content())
    return winner.content()


def test_the_file_names_the_holder(journal_dir: Path) -> None:
    with output_lock(journal_dir):
        values = fields(journal_dir)
    assert values.keys() == {
        *("token", "beat", "beat_at", "host", "boot_id", "pid", "process_start", "started_at")
    }
    assert (values["host"], values["pid"]) == (os.uname().nodename, os.getpid())


def test_the_heartbeat_counts_in_place(journal_dir: Path) -> None:
    with output_lock(journal_dir, times=TIMES):
        before, inode = fields(journal_dir), (journal_dir / LOCK_NAME).stat().st_ino
        time.sleep(BETWEEN_BEATS_S)
        after = fields(journal_dir)
        assert after["beat"] > before["beat"]
        assert {**after, "beat": 0, "beat_at": 0} == {**before, "beat": 0, "beat_at": 0}
        assert (journal_dir / LOCK_NAME).stat().st_ino == inode


def test_a_held_lock_is_refused_by_name(journal_dir: Path) -> None:
    with output_lock(journal_dir):
        since = fields(journal_dir)["started_at"]
        with pytest.raises(OutputError) as refused, output_lock(journal_dir):
            pass
    output = str(journal_dir).removesuffix(".nanobatch")
    host = os.uname().nodename
    assert refused.value.message == (
        f"another run writes to {output} (process {os.getpid()} on {host}, since {since})"
    )
    assert refused.value.exit_code == 2


def test_a_clean_end_leaves_nothing_to_wait_for(journal_dir: Path) -> None:
    with output_lock(journal_dir):
        pass
    assert (journal_dir / LOCK_NAME).read_bytes() == b""
    with output_lock(journal_dir) as lock:
        lock.require_held()
    lock.release()
    assert "heartbeat" not in [thread.name for thread in threading.enumerate()]


def test_a_run_may_remove_the_folder_under_its_lock(journal_dir: Path) -> None:
    with output_lock(journal_dir, times=TIMES):
        shutil.rmtree(journal_dir)
        time.sleep(BETWEEN_BEATS_S)
    assert not journal_dir.exists()


def test_the_folder_goes_with_its_lock_last(journal_dir: Path) -> None:
    with output_lock(journal_dir) as lock:
        (journal_dir / "parts").mkdir()
        (journal_dir / "parts" / "0").touch()
        (journal_dir / "1.journal").touch()
        lock.remove_folder()
        assert not journal_dir.exists()
        with output_lock(journal_dir) as next_lock:
            next_lock.require_held()
    assert (journal_dir / LOCK_NAME).read_bytes() == b""


def test_the_loser_of_a_takeover_may_write_no_more(journal_dir: Path) -> None:
    with output_lock(journal_dir) as lock:
        lock.require_held()
        content = take_over(journal_dir)
        for _ in range(2):
            with pytest.raises(LockLostError) as lost:
                lock.require_held()
            assert " over (process 123 on node7, since " in lost.value.message
    assert (journal_dir / LOCK_NAME).read_bytes() == content


def test_a_heartbeat_never_takes_a_lost_lock_back(journal_dir: Path) -> None:
    with output_lock(journal_dir, times=TIMES) as lock:
        ours = (journal_dir / LOCK_NAME).read_bytes()
        winner = parse_holder(take_over(journal_dir))
        time.sleep(BETWEEN_BEATS_S)
        assert parse_holder((journal_dir / LOCK_NAME).read_bytes()) == winner
        (journal_dir / LOCK_NAME).write_bytes(ours)
        with pytest.raises(LockLostError):
            lock.require_held()


def test_who_finds_the_file_gone_has_lost_the_lock(journal_dir: Path) -> None:
    with output_lock(journal_dir) as lock:
        shutil.rmtree(journal_dir)
        with pytest.raises(LockLostError) as lost:
            lock.require_held()
    assert lost.value.message == (
        f"the lock {journal_dir / LOCK_NAME} was removed while this run held it"
    )


def test_the_loser_of_a_takeover_stops_before_its_next_write(journal_dir: Path) -> None:
    with output_lock(journal_dir) as lock:
        with JournalWriter(open_journal(journal_dir), before_write=lock.require_held) as writer:
            writer.append(record(0))
            writer.flush()
            before = writer.path.read_bytes()
            take_over(journal_dir)
            writer.append(record(1))
            with pytest.raises(LockLostError):
                writer.flush()
            with pytest.raises(LockLostError) as lost:
                writer.append(record(2))
            assert writer.path.read_bytes() == before
            with pytest.raises(LockLostError):
                writer.close()
        segments = sorted(journal_dir.glob("*.journal"))
        with pytest.raises(LockLostError):
            JournalWriter(open_journal(journal_dir), before_write=lock.require_held)
        assert sorted(journal_dir.glob("*.journal")) == segments
    assert lost.value.exit_code == 1


def test_a_signal_ends_the_wait_for_another_hosts_lock(journal_dir: Path) -> None:
    journal_dir.mkdir()
    (journal_dir / LOCK_NAME).touch()
    content = take_over(journal_dir)
    stop = StopSignal()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    start_s = time.monotonic()
    with pytest.raises(Stopped), stop.installed():
        timer.start()
        with output_lock(journal_dir, times=replace(TIMES, stale_after_s=60)):
            pass
    timer.join()
    assert time.monotonic() - start_s < 5
    assert (journal_dir / LOCK_NAME).read_bytes() == content
