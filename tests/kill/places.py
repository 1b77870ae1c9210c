"""Inside a run that is to be killed: says where it is, waits there, hangs there, or dies there.

Places are told from outside, by what a run reports and by what it asks of the file system (Python's
audit events): the program is the one that users run, and knows nothing of this.
"""

import ctypes
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from nanobatch.job.stats import JobStats
from nanobatch.job.stats import Phase as JobPhase

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = frozenset(
    f"os.{name}"
    for name in ("rename", "remove", "mkdir", "rmdir", "truncate", "link", "symlink", "chmod")
)


HANGS = "hangs"
"""Told before a run hangs."""


class Place(StrEnum):
    """Where a run can be, in order."""

    START = "start"
    LOAD = "load"
    RUN = "run"
    FINALIZE = "finalize"
    BEFORE_RENAME = "before_rename"
    AFTER_RENAME = "after_rename"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What is done to a run.

    Attributes:
        output: The file, or the folder of the files, whose appearing is a place.
        marks: A pipe or file that is told of each place with the time; None tells nobody.
        load_s: Seconds that loading takes.
        step_s: Seconds that a step takes.
        rename_s: Seconds that the run waits on either side of a rename.
        hang_at: Where the run calls into C and does not come back; None nowhere.
        kill_at_operation: Number, from 0, of the change to the file system before which the run
            kills itself; None never.
        names_operations: Whether `marks` is told of each change to the file system.
    """

    output: str
    marks: str | None = None
    load_s: float = 0.0
    step_s: float = 0.0
    rename_s: float = 0.0
    hang_at: str | None = None
    kill_at_operation: int | None = None
    names_operations: bool = False


class TreatedRun:
    """Watches the run of this process from now on.

    Args:
        treatment: What is done to it.
    """

    def __init__(self, treatment: Treatment) -> None:
        self._treatment = treatment
        self._marks = None if treatment.marks is None else os.open(treatment.marks, os.O_WRONLY)
        self._output = Path(os.path.realpath(treatment.output))
        self._is_finalizing = False
        self._has_renamed = False
        self._num_operations = 0
        sys.addaudithook(self._audit)
        self.reach(Place.START)

    def reach(self, place: Place) -> None:
        """Tell of a place; hang there if that is asked for."""
        self._tell(place)
        if place is not Place.START:  # hangs later: signals are not yet handled
            self._hang(place)

    def _hang(self, place: Place) -> None:
        if self._treatment.hang_at == place:
            self._tell(HANGS)
            while True:
                ctypes.CDLL(None).sleep(60)

    def run_job(self, run_job: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs a job as `run_job` does, watched and on the null model."""
        from tests.slow_null_model import load_slow_null_runner

        def load_runner(*arguments: Any) -> Any:
            self.reach(Place.LOAD)
            time.sleep(self._treatment.load_s)
            os.environ["NULL_STEP_S"] = str(self._treatment.step_s)
            runner = load_slow_null_runner(*arguments)
            self.reach(Place.RUN)
            return runner

        def run(*arguments: Any, on_stats: Callable[[JobStats], None], **options: Any) -> Any:
            def watched(stats: JobStats) -> None:
                if stats.phase is JobPhase.FINALIZING and not self._is_finalizing:
                    self._is_finalizing = True
                    self.reach(Place.FINALIZE)
                on_stats(stats)

            return run_job(*arguments, on_stats=watched, load_runner=load_runner, **options)

        return functools.wraps(run_job)(run)

    def _tell(self, what: str) -> None:
        if self._marks is not None:
            os.write(self._marks, f"{what} {time.monotonic()}\n".encode())

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and self._is_output(arguments[1]):
            self._has_renamed = True
            self.reach(Place.BEFORE_RENAME)
            time.sleep(self._treatment.rename_s)
        elif event == "open" and self._has_renamed:
            self._has_renamed = False
            self.reach(Place.AFTER_RENAME)
            time.sleep(self._treatment.rename_s)
        if event in _CHANGES or (event == "open" and self._opens_for_writing(arguments)):
            self._operate(event, arguments[0])

    def _is_output(self, path: object) -> bool:
        changed = Path(os.fsdecode(path))  # type: ignore[arg-type]
        return self._output in (changed, changed.parent)

    def _opens_for_writing(self, arguments: tuple[Any, ...]) -> bool:
        path, _, flags = arguments
        is_near = isinstance(path, str) and path.startswith(str(self._output.parent))
        return is_near and bool(flags & _WRITES)

    def _operate(self, event: str, path: object) -> None:
        if self._num_operations == 0:
            self._hang(Place.START)
        if self._num_operations == self._treatment.kill_at_operation:
            os.kill(os.getpid(), signal.SIGKILL)
        self._num_operations += 1
        if self._treatment.names_operations:
            self._tell(f"{event.removeprefix('os.')}:{Path(str(path)).name.replace(' ', '_')}")
