"""`OUTPUT.nanobatch/status.json`: how far a job is, for those who look from outside.

A few hundred bytes, rewritten every two seconds and at every change of phase, so that a job can
be watched from another node with nothing but the files. Knows the file and who writes it; what
it says of a job's life is read in `job.observe`. Losing the file loses no row.
"""

import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path

from nanobatch.errors import OutputError
from nanobatch.job.stats import JobStats, Phase
from nanobatch.job_config import Shard

logger = logging.getLogger(__name__)

STATUS_VERSION = 1
UPDATE_INTERVAL_S = 2.0
NUM_RATE_SAMPLES = 16
"""Updates over which rows/s is taken: half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What the status file holds, under the same names.

    Attributes:
        phase: Where the run is; a value of `Phase`.
        rows_done: Rows with a recorded result, error rows and resumed rows included.
        rows_error: Of those, error rows.
        rows_resumed: Of the rows done, those of earlier runs.
        rows_total: Rows of the job, None while unknown.
        input_fraction: Share of the input's bytes whose rows are done, 0 to 1.
        eta_s: Estimated seconds until the last row is done, None while unknown.
        rows_per_s: Rows finished per second over the last half minute.
        decode_tokens_per_s: Generated tokens per second over the last seconds.
        prefill_tokens_per_s: Prompt tokens computed per second over the last seconds.
        errors_by_code: Error rows by code.
        host: Where the run is, None where it is not known.
        pid: Its process there.
        started_at: When the run began, ISO 8601 with offset, by its own clock.
        updated_at: When this was written, likewise.
        ended_at: When the run ended, None before.
        stop_reason: Why it ended before it was finished, None if it did not.
        shard: Which part of the job it answers (`3/16`), None for all of it.
        model: Which model answers.
        output: The output as it was named on the command line.
        version: Format of the file.
    """

    phase: str
    rows_done: int = 0
    rows_error: int = 0
    rows_resumed: int = 0
    rows_total: int | None = None
    input_fraction: float = 0.0
    eta_s: float | None = None
    rows_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    errors_by_code: Mapping[str, int] = field(default_factory=dict)
    host: str | None = None
    pid: int | None = None
    started_at: str | None = None
    updated_at: str | None = None
    ended_at: str | None = None
    stop_reason: str | None = None
    shard: str | None = None
    model: str | None = None
    output: str | None = None
    version: int = STATUS_VERSION


def status_path(journal_dir: Path) -> Path:
    """Return where the status of a job is."""
    return journal_dir / "status.json"


def read_status(journal_dir: Path) -> JobStatus | None:
    """Return what a job last said of itself, or None if it said nothing that can be read.

    Raises:
        OutputError: The file may not be read, or another version of nanobatch wrote it.
    """
    path = status_path(journal_dir)
    try:
        stored = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OutputError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
    except ValueError:  # it is not fsynced, so a machine that crashed may leave it empty
        return None
    if not isinstance(stored, dict) or stored.keys() < {"version", "phase"}:
        return None
    if stored["version"] != STATUS_VERSION:
        raise OutputError(
            f"{path} has version {stored['version']}; this nanobatch reads {STATUS_VERSION}",
            hint="use the nanobatch that runs the job",
        )
    known = {field.name for field in fields(JobStatus)}
    return JobStatus(**{name: value for name, value in stored.items() if name in known})


class StatusWriter:
    """Keeps the status file up to date; for the thread of the job's loop.

    A failed write is logged once and forgotten: the rows matter, not this file. Nothing is
    written where the journal's folder is not there, before a run or after one that finished.

    Args:
        path: The status file.
        shard: Which part of the job the run answers.
        clock: Seconds from any fixed start.
    """

    def __init__(
        self,
        path: Path,
        *,
        shard: Shard | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._shard = None if shard is None else f"{shard.index}/{shard.num_shards}"
        self._clock = clock
        self._started_at = _now()
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._phase: Phase | None = None
        self._due_s = 0.0
        self._samples: deque[tuple[float, int]] = deque(maxlen=NUM_RATE_SAMPLES)
        self._has_failed = False

    def update(self, stats: JobStats) -> None:
        """Write a snapshot if it is time or the phase has changed; else cost a microsecond."""
        now = self._clock()
        if now < self._due_s and stats.phase is self._phase:
            return
        self._phase = stats.phase
        self._due_s = now + UPDATE_INTERVAL_S
        self._samples.append((now, stats.num_rows_done - stats.num_rows_resumed))
        self._write(self._status(stats))

    def close(self, stats: JobStats, reason: str | None = None) -> None:
        """Write the last snapshot.

        Args:
            stats: The run's last snapshot.
            reason: Why the run ended before it was finished: a signal's name, a limit, an error's
                message; None for a run that finished.
        """
        self._write(self._status(stats, ended_at=_now(), stop_reason=reason))

    def _status(
        self, stats: JobStats, *, ended_at: str | None = None, stop_reason: str | None = None
    ) -> JobStatus:
        return JobStatus(
            phase=stats.phase.value,
            rows_done=stats.num_rows_done,
            rows_error=stats.num_rows_error,
            rows_resumed=stats.num_rows_resumed,
            rows_total=stats.num_rows_total,
            input_fraction=round(stats.input_fraction, 6),
            eta_s=None if stats.eta_s is None else round(stats.eta_s, 1),
            rows_per_s=self._rows_per_s(),
            decode_tokens_per_s=round(stats.decode_tokens_per_s_now, 1),
            prefill_tokens_per_s=round(stats.prefill_tokens_per_s_now, 1),
            errors_by_code=dict(stats.error_counts),
            host=self._host,
            pid=self._pid,
            started_at=self._started_at,
            updated_at=_now(),
            ended_at=ended_at,
            stop_reason=stop_reason,
            shard=self._shard,
            model=stats.model_name,
            output=stats.job_name,
        )

    def _rows_per_s(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (first_s, num_first), (last_s, num_last) = self._samples[0], self._samples[-1]
        return round((num_last - num_first) / max(last_s - first_s, 1e-3), 2)

    def _write(self, status: JobStatus) -> None:
        """Replace the file. Not durable: after a crash the journal tells more than this."""
        try:
            self._temporary.write_text(json.dumps(asdict(status), indent=2) + "\n")
            self._temporary.replace(self._path)
        except FileNotFoundError:  # the folder went with a finished journal
            return
        except OSError as error:
            if not self._has_failed:
                reason = os.strerror(error.errno or 0)
                logger.warning("cannot write %s: %s; the run goes on", self._path, reason)
            self._has_failed = True


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
