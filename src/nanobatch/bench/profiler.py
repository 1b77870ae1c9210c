"""A window of a run under torch's profiler: a trace file, idle time, the kernels that cost most.

The window is opened and closed by the run's own steps, on its thread, so that the trace also shows
what the host did. A profiled run is slower and is never among the measured ones.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanobatch.bench.events import Profile
from nanobatch.bench.kernel_intervals import (
    HOST_GAP_NS,
    KernelInterval,
    idle_share,
    top_kernels,
)


class WindowProfiler:
    """Profiles some seconds of a run that begins when this is made.

    Args:
        start_s: Seconds into the run when the window opens.
        window_s: Its length; the run's end closes it, too.
        clock: Monotonic seconds.
    """

    def __init__(
        self, *, start_s: float, window_s: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        _start_once()  # the first start takes seconds
        self._clock = clock
        self._open_at_s = clock() + start_s
        self._window_s = window_s
        self._opened_s: float | None = None
        self._closed_s: float | None = None
        self._profiler = _make_profiler()

    def on_tokens(self, _num_tokens: int) -> None:
        """Open or close the window if it is time."""
        now = self._clock()
        if self._opened_s is None:
            if now >= self._open_at_s:
                self._profiler.start()
                self._opened_s = self._clock()
        elif self._closed_s is None and now >= self._opened_s + self._window_s:
            self._close()

    def finish(self, workload: str, trace: Path) -> Profile | None:
        """Write the trace and return what it shows; None where the run ended before the window."""
        if self._opened_s is None:
            return None
        if self._closed_s is None:
            self._close()
        assert self._closed_s is not None, "just closed"
        trace.parent.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(trace))
        intervals = _gpu_intervals(self._profiler)
        if intervals:
            kernels = top_kernels((name, 1, (end - start) / 1e9) for name, start, end in intervals)
        else:
            kernels = top_kernels(
                (each.key, each.count, each.self_cpu_time_total / 1e6)
                for each in self._profiler.key_averages()
            )
        return Profile(
            workload=workload,
            trace=str(trace),
            window_s=self._closed_s - self._opened_s,
            idle_share=idle_share(intervals) if intervals else None,
            host_gap_share=idle_share(intervals, min_gap_ns=HOST_GAP_NS) if intervals else None,
            kernels=kernels,
        )

    def _close(self) -> None:
        self._closed_s = self._clock()
        self._profiler.stop()


def _make_profiler() -> Any:
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
        # CUPTI that is torn down and started again crashes on CUDA graphs; torch.profiler sets
        # these for Inductor's graphs only.
        os.environ.setdefault("TEARDOWN_CUPTI", "0")
        os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
    return profile(activities=activities)


def _start_once() -> None:
    profiler = _make_profiler()
    profiler.start()
    profiler.stop()


def _gpu_intervals(profiler: Any) -> list[KernelInterval]:
    """Return when the GPU worked: kernels, copies and fills of all streams."""
    return [
        KernelInterval(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in profiler.profiler.kineto_results.events()
        if event.device_type().name == "CUDA" and not event.is_user_annotation()
    ]
