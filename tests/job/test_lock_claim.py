"""When a lock that was not released may be taken, and when not."""

import errno
import fcntl
import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nanobatch.errors import OutputError
from nanobatch.job.lock import LOCK_NAME, output_lock
from nanobatch.job.lock_claim import LockTimes
from nanobatch.job.lock_holder import LockHolder, parse_holder
from tests.job.python_program import PythonProgram

TIMES = LockTimes(beat_interval_s=0.02, stale_after_s=0.4, poll_interval_s=0.02, settle_s=0.05)
HOLD = """
from nanobatch.job.lock import output_lock
with output_lock(Path({folder!r})):
    ready()
    time.sleep(60)
"""


@pytest.fixture
def journal_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "out.jsonl.nanobatch"
    folder.mkdir()
    return folder


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)


def left_by(journal_dir: Path, **changes: object) -> LockHolder:
    """Leave the lock of a process that differs from this one; return it."""
    holder = replace(LockHolder.of_this_process(), **changes)  # type: ignore[arg-type]
    (journal_dir / LOCK_NAME).write_bytes(holder.content())
    return holder


def seconds_to_take(journal_dir: Path) -> float:
    start_s = time.monotonic()
    with output_lock(journal_dir, times=TIMES) as lock:
        seconds = time.monotonic() - start_s
        lock.require_held()
        found = parse_holder((journal_dir / LOCK_NAME).read_bytes())
        assert found is not None
        assert found.pid == os.getpid()
    return seconds


@contextmanager
def beating(holder: LockHolder, path: Path) -> Iterator[None]:
    """Rewrite a holder's lock as its heartbeat does."""
    ended = threading.Event()

    def beat() -> None:
        count = 0
        with path.open("r+b", buffering=0) as file:
            while not ended.wait(0.1):
                count += 1
                os.pwrite(file.fileno(), *holder.beat(count))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_of_two_processes_the_second_is_refused_until_the_first_is_killed(
    journal_dir: Path,
) -> None:
    first = PythonProgram(HOLD.format(folder=str(journal_dir)))
    with pytest.raises(OutputError) as refused, output_lock(journal_dir):
        pass
    assert f"(process {first.pid} on {os.uname().nodename}, since " in refused.value.message
    first.kill()
    assert (journal_dir / LOCK_NAME).stat().st_size > 0
    assert seconds_to_take(journal_dir) < TIMES.stale_after_s


def test_another_hosts_lock_that_beats_is_refused(journal_dir: Path) -> None:
    holder = left_by(journal_dir, host="node7", boot_id="another", pid=123)
    with (
        beating(holder, journal_dir / LOCK_NAME),
        pytest.raises(OutputError) as refused,
        output_lock(journal_dir, times=TIMES),
    ):
        pass
    assert "(process 123 on node7, since " in refused.value.message
    assert parse_holder((journal_dir / LOCK_NAME).read_bytes()) == holder


def test_another_hosts_lock_without_a_beat_is_taken_over(
    journal_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left_by(journal_dir, host="node7", boot_id="another", pid=123)
    with caplog.at_level(logging.INFO):
        assert seconds_to_take(journal_dir) > TIMES.stale_after_s
    output = str(journal_dir).removesuffix(".nanobatch")
    assert caplog.messages == [
        f"{output} was locked by process 123 on node7; watching 0.4 s for a heartbeat"
    ]


def test_the_usual_time_without_a_beat_is_a_minute() -> None:
    times = LockTimes()
    assert (times.stale_after_s, times.beat_interval_s) == (60, 10)


@pytest.mark.parametrize("content", [bytes(512), b"{", b"[]", b"4711\n"])
def test_a_damaged_lock_is_watched_like_another_hosts(journal_dir: Path, content: bytes) -> None:
    (journal_dir / LOCK_NAME).write_bytes(content)
    assert seconds_to_take(journal_dir) > TIMES.stale_after_s


@pytest.mark.parametrize("end", [Path.unlink, lambda path: os.truncate(path, 0)])
def test_a_lock_that_goes_while_it_is_watched_is_taken_at_once(
    journal_dir: Path, end: Callable[[Path], None]
) -> None:
    left_by(journal_dir, host="node7", boot_id="another")
    timer = threading.Timer(0.05, end, (journal_dir / LOCK_NAME,))
    timer.start()
    assert seconds_to_take(journal_dir) < TIMES.stale_after_s
    timer.join()


def test_after_a_reboot_the_lock_is_taken_at_once(journal_dir: Path) -> None:
    left_by(journal_dir, boot_id="before the reboot")
    assert seconds_to_take(journal_dir) < TIMES.stale_after_s


def test_a_dead_container_on_this_kernel_is_known_to_be_dead(journal_dir: Path) -> None:
    left_by(journal_dir, host="a container")
    assert seconds_to_take(journal_dir) < TIMES.stale_after_s


@pytest.fixture
def stranger() -> Iterator[int]:
    """Yield the number of a living process that has nothing to do with us."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.parametrize("file_system", ["flock", "no_flock"])
def test_a_reused_process_number_is_not_the_holder(
    journal_dir: Path, file_system: str, stranger: int, request: pytest.FixtureRequest
) -> None:
    if file_system == "no_flock":
        request.getfixturevalue("no_flock")
    left_by(journal_dir, pid=stranger, process_start=1)
    assert seconds_to_take(journal_dir) < TIMES.stale_after_s


@pytest.mark.usefixtures("no_flock")
def test_without_flock_a_living_process_is_refused_and_a_dead_one_is_not(
    journal_dir: Path,
) -> None:
    first = PythonProgram(HOLD.format(folder=str(journal_dir)))
    with pytest.raises(OutputError) as refused, output_lock(journal_dir, times=TIMES):
        pass
    assert f"(process {first.pid} on " in refused.value.message
    first.kill()
    assert seconds_to_take(journal_dir) < TIMES.stale_after_s


@pytest.mark.usefixtures("no_flock")
def test_without_flock_another_hosts_lock_is_watched_too(journal_dir: Path) -> None:
    left_by(journal_dir, host="node7")
    assert seconds_to_take(journal_dir) > TIMES.stale_after_s


@pytest.mark.usefixtures("no_flock")
def test_of_two_takeovers_at_once_one_refuses(journal_dir: Path) -> None:
    """Two hosts whose flock does not reach each other."""
    left_by(journal_dir, host="node7", boot_id="another")
    outcomes: list[str] = []
    both_are_through = threading.Barrier(2)

    def take() -> None:
        try:
            with output_lock(journal_dir, times=replace(TIMES, settle_s=0.3)) as lock:
                both_are_through.wait(10)
                lock.require_held()
                outcomes.append("held")
        except OutputError:
            both_are_through.wait(10)
            outcomes.append("refused")

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["held", "refused"]


def test_a_takeover_that_another_host_overwrites_is_refused(journal_dir: Path) -> None:
    path = journal_dir / LOCK_NAME
    left = left_by(journal_dir, host="node7", boot_id="another")

    def overwrite() -> None:
        while parse_holder(path.read_bytes()) in (left, None):
            time.sleep(0.01)
        left_by(journal_dir, host="node9", boot_id="a third", pid=9)

    thread = threading.Thread(target=overwrite)
    thread.start()
    with (
        pytest.raises(OutputError) as refused,
        output_lock(journal_dir, times=replace(TIMES, settle_s=0.5)),
    ):
        pass
    thread.join()
    assert "(process 9 on node9, since " in refused.value.message


def test_a_file_that_its_holder_removed_meanwhile_is_no_lock(
    journal_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def flock_after_removal(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        shutil.rmtree(journal_dir)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_after_removal)
    assert seconds_to_take(journal_dir) < TIMES.stale_after_s
    assert (journal_dir / LOCK_NAME).read_bytes() == b""
