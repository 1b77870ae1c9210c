"""Tasks in processes of their own: events come through, and every bad end is said in a line."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from nanobatch.bench import worker_process
from nanobatch.bench.events import Event, Finished, Loaded
from nanobatch.bench.worker_process import WorkerCrashError, run_task
from nanobatch.errors import ConfigError
from tests.bench.tasks_for_tests import (
    CrashingTask,
    GoodTask,
    KilledTask,
    LingeringTask,
    RefusedTask,
)

LOADED = Loaded(engine_version="1", seconds=2.0)


def test_events_come_through_and_libraries_talk_to_the_log(tmp_path: Path) -> None:
    events: list[Event] = []
    with (tmp_path / "log").open("w+") as log:
        run_task(GoodTask(), name="good", on_event=events.append, log=log)
    assert events == [LOADED, Finished()]
    assert (tmp_path / "log").read_text() == "a library talks\n"


def test_a_process_that_is_done_but_does_not_leave_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_process, "EXIT_GRACE_S", 0.1)
    events: list[Event] = []
    begin_s = time.monotonic()
    run_task(LingeringTask(), name="lingering", on_event=events.append)
    assert events == [Finished()]
    assert time.monotonic() - begin_s < 30


def test_an_error_of_ours_is_raised_here_as_it_was_there() -> None:
    with pytest.raises(ConfigError) as raised:
        run_task(RefusedTask(), name="refused", on_event=lambda _: None)
    assert (raised.value.message, raised.value.hint) == ("no GPU", "use --device cpu")


def test_any_other_exception_is_a_crash_with_its_last_lines() -> None:
    events: list[Event] = []
    with pytest.raises(WorkerCrashError) as raised:
        run_task(CrashingTask(), name="vllm", on_event=events.append)
    assert events == [LOADED]
    assert raised.value.message == (
        "the process of vllm ended with code 1: ValueError: CUDA out of memory"
    )
    assert raised.value.last_lines[-1] == "ValueError: CUDA out of memory"
    assert any("tasks_for_tests.py" in line for line in raised.value.last_lines)


def test_a_killed_process_takes_its_children_and_its_folder_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(WorkerCrashError) as raised:
        run_task(KilledTask(tmp_path / "pid"), name="vllm", on_event=lambda _: None)
    assert raised.value.message == "the process of vllm was killed by signal 9"
    child = int((tmp_path / "pid").read_text())
    for _ in range(50):
        if not is_alive(child):
            break
        time.sleep(0.02)
    assert not is_alive(child)
    assert list(folder.iterdir()) == []


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody waited for does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
