"""Runs a workload on a loaded engine: warm-up, measured repeats, and runs that are watched."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from nanobatch.bench.engines.measured_engine import Counts, MeasuredEngine
from nanobatch.bench.events import OnEvent, Repeat
from nanobatch.bench.profiler import WindowProfiler
from nanobatch.bench.timeline import TimelineRecorder
from nanobatch.bench.workloads import Workload
from nanobatch.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePlan:
    """How often a workload is run, and what is watched beside.

    Attributes:
        num_warmups: Runs before the measured ones.
        num_repeats: Measured runs.
        trace_folder: Where the trace of one more, profiled, run goes; None profiles nothing.
        profile_window_s: Length of the profiled window, in the middle of that run.
        has_timeline: Record tokens over time in one more run.
    """

    num_warmups: int = 1
    num_repeats: int = 3
    trace_folder: Path | None = None
    profile_window_s: float = 2.0
    has_timeline: bool = False


def measure(
    engine: MeasuredEngine,
    workload: Workload,
    plan: MeasurePlan,
    *,
    engine_name: str,
    on_event: OnEvent,
) -> None:
    """Run a workload as planned, reporting each repeat as it ends.

    Raises:
        EngineError: The engine did not generate exactly what was asked for.
    """
    for _ in range(plan.num_warmups):
        engine.warm_up(workload)
    durations_s = []
    for _ in range(plan.num_repeats):
        repeat = _timed(engine, workload)
        durations_s.append(repeat.seconds)
        on_event(repeat)
    if plan.trace_folder is not None:
        trace = plan.trace_folder / f"{engine_name}-{workload.name}.json.gz"
        run_s = statistics.median(durations_s)
        _profile(engine, workload, plan, trace=trace, run_s=run_s, on_event=on_event)
    if plan.has_timeline:
        prepared = engine.prepare(workload)
        recorder = TimelineRecorder(workload.name)
        prepared(recorder.on_tokens)
        on_event(recorder.timeline())


def _timed(engine: MeasuredEngine, workload: Workload) -> Repeat:
    prepared = engine.prepare(workload)
    begin_s = time.perf_counter()
    counts = prepared(None)
    seconds = time.perf_counter() - begin_s
    require_exact_lengths(workload, counts)
    return Repeat(
        workload=workload.name,
        seconds=seconds,
        num_output_tokens=sum(counts.output_lens),
        num_prefill_tokens=counts.num_prefill_tokens,
        num_cached_tokens=counts.num_cached_tokens,
    )


def require_exact_lengths(workload: Workload, counts: Counts) -> None:
    """Refuse a run in which a prompt got more or fewer tokens than it was to get.

    Raises:
        EngineError: Such a prompt, or none for it, or one too many.
    """
    if len(counts.output_lens) != workload.num_prompts:
        raise EngineError(
            f"{workload.name}: the engine answered {len(counts.output_lens):,} of "
            f"{workload.num_prompts:,} prompts"
        )
    for row, (given, wanted) in enumerate(
        zip(counts.output_lens, workload.output_lens, strict=True)
    ):
        if given != wanted:
            raise EngineError(
                f"{workload.name}: prompt {row} was continued by {given:,} tokens; "
                f"the workload wants {wanted:,}",
                hint="does it fit the context and the KV cache?",
            )


def _profile(
    engine: MeasuredEngine,
    workload: Workload,
    plan: MeasurePlan,
    *,
    trace: Path,
    run_s: float,
    on_event: OnEvent,
) -> None:
    prepared = engine.prepare(workload)
    start_s = max(0.0, (run_s - plan.profile_window_s) / 2)
    profiler = WindowProfiler(start_s=start_s, window_s=plan.profile_window_s)
    prepared(profiler.on_tokens)
    profile = profiler.finish(workload.name, trace)
    if profile is not None:
        on_event(profile)
