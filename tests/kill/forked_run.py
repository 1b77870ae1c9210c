"""Runs of the program on the null model, started in milliseconds; see `fork_server`."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cli.program import ROOT, environment
from tests.kill.places import Treatment

TIMEOUT_S = 60.0
_FINISHED = re.compile(rb"^finished row (\d+)$", re.MULTILINE)


class ForkServer:
    """Starts runs. Thread-safe. A context manager: it ends with the block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kill.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def start(
        self, arguments: Sequence[str | Path], treatment: Treatment, *, log: Path, stdin: Path
    ) -> "ForkedRun":
        """Start the program.

        Args:
            arguments: Its arguments.
            treatment: What is done to it.
            log: File that its standard error is appended to.
            stdin: File, or named pipe, that is its standard input.
        """
        command = {
            "arguments": list(map(str, arguments)),
            "treatment": asdict(treatment),
            "stderr": str(log),
            "stdin": str(stdin),
        }
        return ForkedRun(self, int(self.ask(command)), log)

    def ask(self, command: dict[str, Any]) -> Any:
        """Send a command and return its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


class ForkedRun:
    """A running program, the leader of its process group."""

    def __init__(self, server: ForkServer, process: int, log: Path) -> None:
        self._server = server
        self._process = process
        self._log = log

    def send(self, number: signal.Signals) -> None:
        """Send a signal, once the process handles it."""
        wait_until_handled(self._process, number)
        os.kill(self._process, number)

    def code(self, *, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for the end; return the exit code, negative for the signal that it died of."""
        has_ended = self._wait(timeout_s)
        if not has_ended:
            os.kill(self._process, signal.SIGKILL)
        code = self._server.ask({"process": self._process})
        assert has_ended, f"runs after {timeout_s} s: {self._log.read_text()[-2000:]}"
        return int(code)

    def _wait(self, timeout_s: float) -> bool:
        descriptor = os.pidfd_open(self._process)
        try:
            return bool(select.select([descriptor], [], [], timeout_s)[0])
        finally:
            os.close(descriptor)

    def leaves_processes(self) -> bool:
        """Whether a process of the run's group lives on after its end."""
        try:
            os.killpg(self._process, 0)
        except ProcessLookupError:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a run told of itself.

    Attributes:
        what: A place, or a change to the file system.
        time_s: When, by the system's monotonic clock.
    """

    what: str
    time_s: float


class Marks:
    """The pipe through which one run after the other tells where it is.

    Args:
        path: Where the named pipe is made.
    """

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Open for writing too, so that it never ends while no run has it open.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._descriptor)

    def read(self) -> list[Mark]:
        """Return what came since the last call."""
        while select.select([self._descriptor], [], [], 0)[0]:
            self._rest += os.read(self._descriptor, 1 << 16)
        *lines, self._rest = self._rest.split(b"\n")
        words = [line.decode().split() for line in lines]
        return [Mark(what=what, time_s=float(time_s)) for what, time_s in words]

    def wait_for(self, what: str, *, times: int = 1) -> list[Mark]:
        """Return as soon as a run has told of something so many times, with all it told."""
        deadline_s = time.monotonic() + TIMEOUT_S
        told: list[Mark] = []
        while sum(mark.what == what for mark in told) < times:
            remaining_s = deadline_s - time.monotonic()
            assert remaining_s > 0, f"the run never came to {what}"
            select.select([self._descriptor], [], [], remaining_s)
            told += self.read()
        return told


def wait_until_handled(process: int, number: signal.Signals) -> None:
    """Wait until a process that has just started would no longer die of a signal's default action.

    A process that has ended is not waited for.
    """
    if number is signal.SIGKILL:
        return
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        status = Path(f"/proc/{process}/status").read_text()
        handled = int(status.partition("SigCgt:")[2].split()[0], 16)
        if handled >> (number - 1) & 1 or "State:\tZ" in status:
            return
        time.sleep(0.001)
    raise AssertionError(f"process {process} does not handle {number.name}")


def finished_rows(log: Path) -> list[int]:
    """Return the rows that the runs of a log finished, in order of completion."""
    return [int(number) for number in _FINISHED.findall(log.read_bytes())]
