"""Hands the newest snapshot to a drawing thread, so that the run never waits for a terminal.

Knows threads and time. Does not know what is drawn.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from nanobatch.job.stats import JobStats

STOP_TIMEOUT_S = 2.0


class StatsFeed:
    """Keeps the newest snapshot and calls `draw` with it, at a steady pace, on its own thread.

    A run that sits in one long call (weights, finalising) gives no snapshots; `draw` is called
    all the same, with the last one. A terminal that takes no more output (Ctrl-S, a dead SSH
    connection) stops the thread, never the run.

    Args:
        draw: Called with the newest snapshot, its clock moved on to now, and its age in seconds.
        interval_s: Seconds from the end of one call to the start of the next.
    """

    def __init__(self, draw: Callable[[JobStats, float], None], *, interval_s: float) -> None:
        self._draw = draw
        self._interval_s = interval_s
        self._newest: tuple[JobStats, float] | None = None
        self._wakeup = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    @property
    def latest(self) -> JobStats | None:
        """The newest snapshot as it was given, None before the first."""
        return None if self._newest is None else self._newest[0]

    def put(self, stats: JobStats) -> None:
        """Keep `stats` as the newest snapshot; the first one starts the thread. Never blocks."""
        self._newest = (stats, time.monotonic())
        if self._thread is None and not self._is_stopping:
            self._thread = threading.Thread(
                target=self._run, name="nanobatch-progress", daemon=True
            )
            self._thread.start()

    def wake(self) -> None:
        """Draw now rather than at the end of the interval."""
        self._wakeup.set()

    def stop(self) -> bool:
        """End the thread.

        Returns:
            Whether it ended; False where it hangs in a write, and nobody else should write.
        """
        self._is_stopping = True
        self._wakeup.set()
        if self._thread is None:
            return True
        self._thread.join(STOP_TIMEOUT_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            # Cleared before anything is read: a wake-up that comes later is not lost.
            self._wakeup.clear()
            if self._is_stopping or self._newest is None:
                return
            stats, given_at = self._newest
            age_s = time.monotonic() - given_at
            try:
                self._draw(move_clock(stats, age_s), age_s)
            except OSError:
                # The terminal or pipe is gone. The run goes on unseen.
                return
            self._wakeup.wait(self._interval_s)


def move_clock(stats: JobStats, age_s: float) -> JobStats:
    """Return `stats` with its elapsed time `age_s` later; that of an ended run stands still."""
    if stats.phase.is_final:
        return stats
    phase_seconds = dict(stats.phase_seconds)
    phase_seconds[stats.phase.value] = phase_seconds.get(stats.phase.value, 0.0) + age_s
    return replace(stats, elapsed_s=stats.elapsed_s + age_s, phase_seconds=phase_seconds)
