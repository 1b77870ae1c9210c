"""Tasks that end in every way that a task can end, for processes of their own."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from nanobatch.bench.events import Loaded, OnEvent
from nanobatch.errors import ConfigError


@dataclass(frozen=True)
class GoodTask:
    """Reports and ends."""

    def run(self, on_event: OnEvent) -> None:
        sys.stdout.write("a library talks\n")
        on_event(Loaded(engine_version="1", seconds=2.0))


@dataclass(frozen=True)
class LingeringTask:
    """Ends, but a thread keeps its process alive."""

    def run(self, on_event: OnEvent) -> None:
        threading.Thread(target=time.sleep, args=(60,)).start()


@dataclass(frozen=True)
class RefusedTask:
    """Is refused with one of our errors."""

    def run(self, on_event: OnEvent) -> None:
        raise ConfigError("no GPU", hint="use --device cpu")


@dataclass(frozen=True)
class CrashingTask:
    """Dies of an exception that nobody foresaw, after something was reported."""

    def run(self, on_event: OnEvent) -> None:
        on_event(Loaded(engine_version="1", seconds=2.0))
        raise ValueError("CUDA out of memory")


@dataclass(frozen=True)
class KilledTask:
    """Is killed, leaving a child that writes its process id."""

    pid_file: Path

    def run(self, on_event: OnEvent) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.pid_file.write_text(str(child.pid))
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
