"""Starts a task's process, passes its events on, and says how it ended if it ended badly."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import nanobatch.errors
from nanobatch.bench.events import Failed, Finished, OnEvent, decode_event
from nanobatch.bench.tasks import Task
from nanobatch.bench.worker import EVENTS_FILE, TASK_FILE
from nanobatch.errors import EngineError, NanobatchError

POLL_S = 0.1
EXIT_GRACE_S = 10
"""How long a process that has reported its end may take to leave."""
NUM_LAST_LINES = 15
LOG_FILE = "log"


class WorkerCrashError(EngineError):
    """A task's process ended without a result.

    Attributes:
        last_lines: The end of what it printed.
    """

    def __init__(self, message: str, *, last_lines: tuple[str, ...]) -> None:
        super().__init__(message, hint="its last lines are above; --debug shows all of them")
        self.last_lines = last_lines


def run_task(task: Task, *, name: str, on_event: OnEvent, log: TextIO | None = None) -> None:
    """Run a task in a process of its own and wait for it.

    Args:
        task: What to do.
        name: What errors call it.
        on_event: Called with each event as it comes.
        log: Where the process prints; None keeps it to itself unless it fails.

    Raises:
        NanobatchError: The one that the task raised.
        WorkerCrashError: The process died of something else.
    """
    with tempfile.TemporaryDirectory(prefix="nanobatch-bench-") as folder:
        place = Path(folder)
        (place / TASK_FILE).write_bytes(pickle.dumps(task))
        (place / EVENTS_FILE).touch()
        with (place / LOG_FILE).open("w+", encoding="utf-8", errors="replace") as own_log:
            process = _start(place, log or own_log)
            try:
                is_finished = _follow(process, place / EVENTS_FILE, on_event)
            finally:
                _kill_group(process)
            if not is_finished:
                own_log.seek(0)
                raise _crash(name, process.returncode, own_log.read().splitlines())


def _start(folder: Path, log: TextIO) -> "subprocess.Popen[bytes]":
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-m", "nanobatch.bench.worker", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # so that it and what it starts can be ended together
    )


def _follow(process: "subprocess.Popen[bytes]", events: Path, on_event: OnEvent) -> bool:
    """Pass events on until the task or its process ends; return whether the task was finished."""
    with events.open(encoding="utf-8") as lines:
        unread = ""
        is_running = True
        while is_running:
            try:
                process.wait(timeout=POLL_S)
                is_running = False  # what it wrote last is still to be read
            except subprocess.TimeoutExpired:
                pass
            *complete, unread = (unread + lines.read()).split("\n")
            for line in complete:
                event = decode_event(line)
                if isinstance(event, Failed):
                    raise _raised_there(event)
                on_event(event)
                if isinstance(event, Finished):
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(EXIT_GRACE_S)
                    return True
    return False


def _raised_there(event: Failed) -> NanobatchError:
    kind = getattr(nanobatch.errors, event.error, EngineError)
    error: NanobatchError = kind(event.message, hint=event.hint)
    return error


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of a process and of all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _crash(name: str, code: int, lines: list[str]) -> WorkerCrashError:
    printed = [line for line in lines if line.strip()]
    ending = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    # Python's last line is the exception; after a signal it says nothing about the reason.
    reason = f": {printed[-1].strip()}" if printed and code > 0 else ""
    return WorkerCrashError(
        f"the process of {name} {ending}{reason}", last_lines=tuple(printed[-NUM_LAST_LINES:])
    )
