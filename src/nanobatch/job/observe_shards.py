"""An output and its shards as their files show them: one job, or the parts of a split one.

Knows the names of shards (`name-00003-of-00016.parquet`) and how their numbers add up; what one
job's files say is `job.observe`'s.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanobatch.errors import OutputError
from nanobatch.job.observe import Clock, JobState, ObservedJob, file_system_clock, observe_job
from nanobatch.job.status import JobStatus

_INFIX = re.compile(r"-(\d{5,})-of-(\d{5,})(?=(\.\w+){0,2}$)")
_SIDE_FILES = (".nanobatch", ".summary.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedShards:
    """The shards of a split job, as far as they have begun.

    Attributes:
        output: The output that was asked about, which `merge` is to write.
        num_shards: Into how many the job is split.
        jobs: Those that have begun, in order, by their index.
    """

    output: str
    num_shards: int
    jobs: Mapping[int, ObservedJob]

    @property
    def missing(self) -> list[int]:
        """Shards that have not begun."""
        return [index for index in range(self.num_shards) if index not in self.jobs]

    @property
    def total(self) -> ObservedJob:
        """The job as a whole: its rows, and the first of running, dead, stopped that a shard is."""
        states = {job.state for job in self.jobs.values()}
        if self.missing:
            states.add(JobState.STOPPED)
        order = (JobState.RUNNING, JobState.DEAD, JobState.STOPPED, JobState.FINISHED)
        state = next(state for state in order if state in states)
        status = _sum([*self.jobs.values()], state, is_whole=not self.missing)
        return ObservedJob(output=self.output, state=state, status=status)


def observe_output(
    output: str, *, clock: Clock = file_system_clock
) -> ObservedJob | ObservedShards:
    """Return what became of the job with an output, or of the shards that will make it up.

    Where an output was split several times, those shards count of which one changed last.

    Raises:
        OutputError: Nothing tells of such a job, or a file of it cannot be read.
        JournalError: See `observe_job`.
    """
    job = observe_job(output, clock=clock)
    if job is not None:
        return job
    splits = [
        (num_shards, observed)
        for num_shards, names in _splits(output).items()
        if (observed := _observe_all(names, clock))
    ]
    if not splits:
        raise OutputError(
            f"nothing is known of {output}: it has no journal and no summary",
            hint="name the output as in `nanobatch run ... -o OUTPUT`",
        )
    num_shards, jobs = max(splits, key=lambda split: _last_update(split[1]))
    return ObservedShards(output=output, num_shards=num_shards, jobs=jobs)


def _splits(output: str) -> dict[int, dict[int, str]]:
    """Return the outputs of shards by the number of shards, then by their index."""
    path = Path(output)
    splits: defaultdict[int, dict[int, str]] = defaultdict(dict)
    entries = path.parent.iterdir() if path.parent.is_dir() else ()
    for name in {_output_name(entry.name) for entry in entries}:
        infix = _INFIX.search(name)
        if infix is not None and name[: infix.start()] + name[infix.end() :] == path.name:
            splits[int(infix[2])][int(infix[1])] = str(path.with_name(name))
    return splits


def _output_name(name: str) -> str:
    """Return the name of the output that a file beside it belongs to."""
    for side_file in _SIDE_FILES:
        if name.endswith(side_file):
            return name.removesuffix(side_file)
    return name


def _observe_all(names: Mapping[int, str], clock: Clock) -> dict[int, ObservedJob]:
    observed = ((index, observe_job(name, clock=clock)) for index, name in sorted(names.items()))
    return {index: job for index, job in observed if job is not None}


def _last_update(jobs: Mapping[int, ObservedJob]) -> str:
    return max(job.status.ended_at or job.status.updated_at or "" for job in jobs.values())


def _sum(jobs: Sequence[ObservedJob], state: JobState, *, is_whole: bool) -> JobStatus:
    statuses = [job.status for job in jobs]
    running = [job.status for job in jobs if job.state is JobState.RUNNING]
    totals = [status.rows_total for status in statuses]
    etas = [status.eta_s for status in running]
    errors: Counter[str] = Counter()
    for status in statuses:
        errors.update(status.errors_by_code)
    return JobStatus(
        phase=state.value,
        rows_done=sum(status.rows_done for status in statuses),
        rows_error=sum(status.rows_error for status in statuses),
        rows_resumed=sum(status.rows_resumed for status in statuses),
        rows_total=_sum_of_known(totals) if is_whole else None,
        eta_s=_max_of_known(etas) if is_whole else None,
        rows_per_s=round(sum(status.rows_per_s for status in running), 2),
        decode_tokens_per_s=round(sum(status.decode_tokens_per_s for status in running), 1),
        prefill_tokens_per_s=round(sum(status.prefill_tokens_per_s for status in running), 1),
        errors_by_code=dict(errors),
        model=statuses[0].model,
    )


def _sum_of_known(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _max_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None
