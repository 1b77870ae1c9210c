"""Small Python programs in processes of their own, for what a test must not do to pytest's."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.project.source_tree import ROOT

TIMEOUT_S = 60
IMPORTS = """
import ctypes, os, signal, subprocess, sys, threading, time
from pathlib import Path
from nanobatch.job.stop_signal import StopSignal
from nanobatch.job.watchdog import Watchdog
TERM = {int(signal.SIGTERM): "SIGTERM"}

def ready(*words):
    print("ready", *words, flush=True)

def hang_in_c():
    mutex = ctypes.create_string_buffer(64)
    while True:
        ctypes.CDLL(None).pthread_mutex_lock(mutex)  # no signal interrupts it
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """How a program ended.

    Attributes:
        code: Exit code; negative for the signal that it died of.
        out: What it printed after its line `ready`.
        err: Standard error.
        seconds: From the last signal, or from when it was waited for, to its end.
    """

    code: int
    out: str
    err: str
    seconds: float


class PythonProgram:
    """A running program.

    Args:
        text: The program; it calls `ready(...)` once it can be signalled.
    """

    def __init__(self, text: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", IMPORTS + text],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        word, *self.said = self._process.stdout.readline().split() or [""]
        if word != "ready":
            self._process.kill()
            raise AssertionError(self._process.communicate())

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._process.kill()
        self._process.communicate(timeout=TIMEOUT_S)

    def code(self, *, timeout_s: float) -> int:
        """Wait for the end without reading what the program prints; return its exit code."""
        return self._process.wait(timeout_s)

    def ended(self, *numbers: signal.Signals) -> ProgramEnd:
        """Send signals a little apart and wait for the end."""
        for position, number in enumerate(numbers):
            time.sleep(0.2 * min(position, 1))
            self.send(number)
        start_s = time.monotonic()
        try:
            out, err = self._process.communicate(timeout=TIMEOUT_S)
        finally:
            self._process.kill()
        seconds = time.monotonic() - start_s
        return ProgramEnd(code=self._process.returncode, out=out, err=err, seconds=seconds)


def is_running(pid: int) -> bool:
    """Whether a process lives; one that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
