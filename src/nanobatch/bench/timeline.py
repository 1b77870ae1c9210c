"""Tokens over time: a few hundred points of a run, for a plot."""

import time
from collections.abc import Callable

from nanobatch.bench.events import Timeline

MIN_INTERVAL_S = 0.05


class TimelineRecorder:
    """Notes how many tokens there are, at most every `MIN_INTERVAL_S`; begins when it is made.

    Args:
        workload: Name of what is run.
        clock: Monotonic seconds.
    """

    def __init__(self, workload: str, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._workload = workload
        self._clock = clock
        self._begin_s = clock()
        self._points: list[tuple[float, int]] = [(0.0, 0)]
        self._latest = (0.0, 0)

    def on_tokens(self, num_tokens: int) -> None:
        """Take a step's count."""
        self._latest = (self._clock() - self._begin_s, num_tokens)
        if self._latest[0] - self._points[-1][0] >= MIN_INTERVAL_S:
            self._points.append(self._latest)

    def timeline(self) -> Timeline:
        """Return what was noted, up to the last step."""
        points = self._points if self._points[-1] == self._latest else [*self._points, self._latest]
        return Timeline(
            workload=self._workload,
            seconds=[round(seconds, 4) for seconds, _ in points],
            num_tokens=[num_tokens for _, num_tokens in points],
        )
