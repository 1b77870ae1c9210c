"""What `nanobatch status` prints. Knows the wording and the JSON, not where the numbers are."""

from collections.abc import Sequence
from dataclasses import asdict

from nanobatch.dashboard.text import (
    format_count,
    format_duration,
    format_percent,
    format_plural,
    format_rate,
)
from nanobatch.job.observe import JobState, ObservedJob
from nanobatch.job.observe_shards import ObservedShards
from nanobatch.job.stats import Phase
from nanobatch.job.status import JobStatus

LABEL_WIDTH = 8
SILENT_AFTER_S = 5.0
_GO_ON = "run the same line again to continue"


def status_json(observed: ObservedJob | ObservedShards) -> dict[str, object]:
    """Return everything that is known as JSON values; of shards their sum, then each of them."""
    if isinstance(observed, ObservedJob):
        status = {**asdict(observed.status), "output": observed.output}
        return {"state": observed.state.value, "age_s": observed.age_s, **status}
    return {
        **status_json(observed.total),
        "num_shards": observed.num_shards,
        "shards_missing": observed.missing,
        "shards": [status_json(job) for job in observed.jobs.values()],
    }


def render_status(observed: ObservedJob | ObservedShards) -> str:
    """Write what is known as a few lines, ended by a newline."""
    if isinstance(observed, ObservedJob):
        job, lines = observed, []
    else:
        job, lines = observed.total, _shard_lines(observed)
    sections = [
        ("rows", _rows_text(job.status)),
        ("speed", _speed_text(job)),
        ("left", _left_text(job)),
        ("run", _run_text(job.status)),
        ("model", job.status.model or ""),
        ("next", _next_text(observed)),
    ]
    lines += [f"  {name:<{LABEL_WIDTH}}{text}" for name, text in sections if text]
    return "\n".join([f"{job.output}: {_state_text(job)}", *lines]) + "\n"


def _state_text(job: ObservedJob) -> str:
    status = job.status
    if job.state is JobState.DEAD and job.age_s is not None:
        return f"dead, no sign of life for {format_duration(job.age_s)}"
    if job.state is JobState.STOPPED and status.stop_reason is not None:
        return f"stopped ({status.stop_reason})"
    text = job.state.value
    if job.state is JobState.RUNNING and status.phase not in (Phase.RUNNING, job.state):
        text += f" ({status.phase})"
    if job.age_s is not None and job.age_s >= SILENT_AFTER_S:
        text += f", last sign of life {format_duration(job.age_s)} ago"
    return text


def _rows_text(status: JobStatus) -> str:
    text = f"{_done_text(status, 'done')}, {format_plural(status.rows_error, 'error')}"
    by_count = sorted(status.errors_by_code.items(), key=lambda item: (-item[1], item[0]))
    codes = ", ".join(f"{format_count(count)} {code}" for code, count in by_count)
    text += f" ({codes})" if codes else ""
    if status.rows_resumed:
        text += f"; {format_count(status.rows_resumed)} from earlier runs"
    return text


def _done_text(status: JobStatus, what: str) -> str:
    done = format_count(status.rows_done)
    if status.rows_total is not None:
        return f"{done} of {format_count(status.rows_total)} {what}"
    share = format_percent(status.input_fraction)
    return f"{done} {what}" + (f" ({share} of the input)" if status.input_fraction else "")


def _speed_text(job: ObservedJob) -> str:
    status = job.status
    if job.state is not JobState.RUNNING or status.phase not in (Phase.RUNNING, job.state):
        return ""
    return (
        f"{format_rate(status.rows_per_s)} rows/s, "
        f"prefill {format_rate(status.prefill_tokens_per_s)} tok/s, "
        f"decode {format_rate(status.decode_tokens_per_s)} tok/s"
    )


def _left_text(job: ObservedJob) -> str:
    if job.state is not JobState.RUNNING or job.status.eta_s is None:
        return ""
    return f"about {format_duration(job.status.eta_s)}"


def _run_text(status: JobStatus) -> str:
    if status.host is None:
        return f"ended {status.ended_at}" if status.ended_at is not None else ""
    ended = f", ended {status.ended_at}" if status.ended_at is not None else ""
    return f"process {status.pid} on {status.host}, began {status.started_at}{ended}"


def _next_text(observed: ObservedJob | ObservedShards) -> str:
    if isinstance(observed, ObservedShards):
        if observed.total.state is JobState.FINISHED:
            return "join the shards with `nanobatch merge`"
        unfinished = [
            index
            for index, job in observed.jobs.items()
            if job.state in (JobState.STOPPED, JobState.DEAD)
        ]
        indices = sorted([*unfinished, *observed.missing])
        return f"run the lines of shards {_ranges(indices)}" if indices else ""
    return _GO_ON if observed.state in (JobState.STOPPED, JobState.DEAD) else ""


def _shard_lines(observed: ObservedShards) -> list[str]:
    """Write a line per shard that has begun, in columns."""
    cells = [
        (
            f"{index:05d}",
            _state_text(job),
            _done_text(job.status, "rows"),
            format_plural(job.status.rows_error, "error"),
            _left_text(job),
        )
        for index, job in observed.jobs.items()
    ]
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    lines = [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    lines = [line.rstrip() for line in lines]
    if observed.missing:
        lines.append(f"  {_ranges(observed.missing)} of {observed.num_shards} have not begun")
    return lines


def _ranges(indices: Sequence[int]) -> str:
    """Write ascending numbers shortly: `0-3, 7`."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ", ".join("-".join(map(str, run)) for run in runs)
