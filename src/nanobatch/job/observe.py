"""What became of a job, told from its files alone, on any node that sees them.

    OUTPUT.summary.json           finished
    OUTPUT.nanobatch/status.json  running, stopped or dead, with its last numbers
    OUTPUT.nanobatch/ without it  the same, with what the journal says

Takes no lock and changes nothing. A run is taken for dead when nothing in its folder changed for
`DEAD_AFTER_S`: a living one writes its status every two seconds, and its lock's heartbeat through
silent phases. Clocks of hosts differ, so an age is the difference of two times of one clock, the
file system's: the present one is that of an unnamed temporary file. Where none may be made, the
local clock stands in. Shards are put together in `job.observe_shards`.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from nanobatch.io.journal import open_journal
from nanobatch.io.journal_segment import segment_numbers
from nanobatch.job.manifest import manifest_path, read_json_object
from nanobatch.job.stats import Phase
from nanobatch.job.status import JobStatus, read_status, status_path
from nanobatch.job_config import JobConfig

DEAD_AFTER_S = 30.0

Clock = Callable[[Path], float]
"""Returns the time in seconds by the clock that stamps the files of a folder."""


class JobState(StrEnum):
    """Whether a job goes on by itself."""

    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedJob:
    """A job as its files show it.

    Attributes:
        output: The output that was asked about.
        state: Whether it goes on.
        status: Its last numbers; of a finished job those of its summary.
        age_s: Seconds since its last sign of life; None once its run has ended.
    """

    output: str
    state: JobState
    status: JobStatus
    age_s: float | None = None


def file_system_clock(folder: Path) -> float:
    """Return the time that a file written in a folder gets, else the local time."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".nanobatch-clock-") as file:
            file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())  # a network file system's server stamps what reaches it
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def observe_job(output: str, *, clock: Clock = file_system_clock) -> ObservedJob | None:
    """Return what became of the job with an output, or None if no file tells of one.

    Raises:
        OutputError: A file of it cannot be read.
        JournalError: Only its journal is there to tell, and that is damaged in its middle.
    """
    paths = JobConfig(inputs=(), output=output)
    folder = paths.journal_dir
    status = read_status(folder)
    summary = read_json_object(paths.summary_path)
    if summary is not None and not _is_older(paths.summary_path, folder, status):
        status = _summarised(summary)
        return ObservedJob(output=output, state=JobState.FINISHED, status=status)
    if status is None:
        if not segment_numbers(folder) and not manifest_path(folder).exists():
            return None
        status = _counted(folder)
    if status.ended_at is not None:
        is_finished = status.phase == Phase.FINISHED and status.stop_reason is None
        state = JobState.FINISHED if is_finished else JobState.STOPPED
        return ObservedJob(output=output, state=state, status=status)
    age_s = max(0.0, clock(folder.absolute().parent) - _last_change(folder))
    state = JobState.RUNNING if age_s < DEAD_AFTER_S else JobState.DEAD
    return ObservedJob(output=output, state=state, status=status, age_s=age_s)


def _is_older(summary: Path, folder: Path, status: JobStatus | None) -> bool:
    """Return whether a summary is of a job that another run is about to replace.

    A run that was killed between its summary and the removal of its journal left a status that
    is older than the summary, or says that it has finished.
    """
    if status is None or status.phase == Phase.FINISHED:
        return False
    return _changed_at(status_path(folder)) > _changed_at(summary)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it went while we looked
        return 0.0


def _last_change(folder: Path) -> float:
    return max(map(_changed_at, [folder, *folder.iterdir()]))


def _summarised(summary: Mapping[str, Any]) -> JobStatus:
    rows = summary["rows"]
    return JobStatus(
        phase=Phase.FINISHED.value,
        rows_done=rows["total"],
        rows_error=rows["error"],
        rows_resumed=rows["from_earlier_runs"] or 0,
        rows_total=rows["total"],
        input_fraction=1.0,
        eta_s=0.0,
        errors_by_code=rows["errors_by_code"],
        ended_at=summary["finished_at"],
        model=summary.get("model"),
        output=summary["output"],
    )


def _counted(folder: Path) -> JobStatus:
    """Return what a journal says whose status was never written, or lost in a crash."""
    with open_journal(folder, read_only=True) as index:
        counts = index.counts
    return JobStatus(
        phase=Phase.STARTING.value if counts.num_rows == 0 else Phase.RUNNING.value,
        rows_done=counts.num_rows,
        rows_error=counts.num_rows_error,
        errors_by_code={code.value: count for code, count in counts.error_counts.items()},
    )
