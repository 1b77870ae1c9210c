"""What a device did in a profile, from when its kernels began and ended.

Arithmetic on intervals; knows no profiler.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from nanobatch.bench.events import KernelTime

NUM_TOP_KERNELS = 15
HOST_GAP_NS = 20_000
"""Shorter gaps stand between the kernels of a graph; longer ones wait for the host."""


class KernelInterval(NamedTuple):
    """One run of a kernel."""

    name: str
    start_ns: int
    end_ns: int


def idle_share(intervals: Sequence[KernelInterval], *, min_gap_ns: int = 0) -> float:
    """Return the share of time, from the first kernel to the last, in which none ran.

    Kernels that overlap, on whatever streams, count once.

    Args:
        intervals: At least one, in any order.
        min_gap_ns: Gaps that are shorter do not count.
    """
    times = np.array([(each.start_ns, each.end_ns) for each in intervals], dtype=np.int64)
    starts, ends = times[np.argsort(times[:, 0], kind="stable")].T
    busy_until = np.maximum.accumulate(ends)
    gaps = np.maximum(starts[1:] - busy_until[:-1], 0)
    gaps = gaps[gaps >= min_gap_ns]
    window = int(busy_until[-1] - starts[0])
    return float(gaps.sum() / window) if window else 0.0


def top_kernels(times: Iterable[tuple[str, int, float]]) -> tuple[KernelTime, ...]:
    """Return the names that took longest.

    Args:
        times: (name, number of calls, seconds) in any order; names may repeat.
    """
    totals: dict[str, tuple[int, float]] = {}
    for name, num_calls, seconds in times:
        calls_before, seconds_before = totals.get(name, (0, 0.0))
        totals[name] = (calls_before + num_calls, seconds_before + seconds)
    all_s = sum(seconds for _, seconds in totals.values()) or 1.0
    ranked = sorted(totals.items(), key=lambda item: -item[1][1])[:NUM_TOP_KERNELS]
    return tuple(
        KernelTime(name=name, num_calls=num_calls, seconds=seconds, share=seconds / all_s)
        for name, (num_calls, seconds) in ranked
    )
