"""What is seen of a watched run: tokens over time, a profile's window, idle time, kernels."""

from pathlib import Path

import pytest

from nanobatch.bench.events import Timeline
from nanobatch.bench.kernel_intervals import KernelInterval, idle_share, top_kernels
from nanobatch.bench.plot import rates_over_time
from nanobatch.bench.profiler import WindowProfiler
from nanobatch.bench.timeline import MIN_INTERVAL_S, TimelineRecorder


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 10)], 0.0),
        ([(0, 10), (10, 20)], 0.0),
        ([(0, 10), (15, 20)], 0.25),
        ([(15, 20), (0, 10)], 0.25),
        ([(0, 16), (2, 4), (18, 20)], 0.1),  # the second runs beside the first on another stream
        ([(0, 10), (5, 12), (11, 13), (19, 20)], 0.3),
        ([(7, 7)], 0.0),
    ],
)
def test_idle_is_what_no_kernel_of_any_stream_covers(
    spans: list[tuple[int, int]], expected: float
) -> None:
    intervals = [KernelInterval("k", start, end) for start, end in spans]
    assert idle_share(intervals) == pytest.approx(expected)
    assert idle_share(intervals, min_gap_ns=100) == 0.0


def test_short_gaps_are_not_the_host_s() -> None:
    intervals = [KernelInterval("k", start, start + 10) for start in (0, 12, 60, 90)]
    assert idle_share(intervals) == pytest.approx(0.6)
    assert idle_share(intervals, min_gap_ns=20) == pytest.approx(0.58)


def test_kernels_are_summed_by_name_longest_first() -> None:
    kernels = top_kernels([("a", 1, 1.0), ("b", 2, 3.0), ("a", 1, 4.0)])
    assert [(each.name, each.num_calls, each.seconds, each.share) for each in kernels] == [
        ("a", 2, 5.0, 0.625),
        ("b", 2, 3.0, 0.375),
    ]


def test_a_timeline_has_few_points_and_the_last_one() -> None:
    clock = Clock()
    recorder = TimelineRecorder("w", clock=clock)
    for step in range(1, 1001):
        clock.now_s += 0.001
        recorder.on_tokens(step * 3)
    timeline = recorder.timeline()
    assert timeline.seconds[-1] == pytest.approx(1.0)
    assert timeline.num_tokens[-1] == 3000
    assert len(timeline.seconds) <= 1.0 / MIN_INTERVAL_S + 2
    assert [round(seconds * 3000) for seconds in timeline.seconds] == list(timeline.num_tokens)


def test_rates_are_tokens_per_second_of_equal_spans() -> None:
    timeline = Timeline(workload="w", seconds=[0, 1, 2, 4], num_tokens=[0, 10, 30, 30])
    middles, rates = rates_over_time(timeline)
    assert middles == pytest.approx([0.5, 1.5, 2.5, 3.5])
    assert rates == pytest.approx([10, 20, 0, 0])


def test_a_profile_is_of_its_window_and_writes_a_trace(tmp_path: Path) -> None:
    import torch

    clock = Clock()
    profiler = WindowProfiler(start_s=5.0, window_s=2.0, clock=clock)
    matrix = torch.ones(8, 8)
    for step in range(12):
        clock.now_s += 1.0
        if step in (0, 11):
            torch.sin(matrix)  # outside
        elif step == 5:
            torch.mm(matrix, matrix)
        profiler.on_tokens(step)
    profile = profiler.finish("w", tmp_path / "traces" / "trace.json.gz")
    assert profile is not None
    assert profile.window_s == 2.0
    names = {kernel.name for kernel in profile.kernels}
    assert "aten::mm" in names
    assert "aten::sin" not in names
    assert (tmp_path / "traces" / "trace.json.gz").stat().st_size > 0


def test_a_run_that_ends_before_the_window_has_no_profile(tmp_path: Path) -> None:
    clock = Clock()
    profiler = WindowProfiler(start_s=5.0, window_s=2.0, clock=clock)
    profiler.on_tokens(1)
    assert profiler.finish("w", tmp_path / "trace.json") is None
    assert list(tmp_path.iterdir()) == []
