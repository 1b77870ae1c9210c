"""Progress where there is no terminal: one line now and then, made to be grepped.

Knows the wording of a line. Does not know the run.
"""

from datetime import datetime
from typing import TextIO

from nanobatch.dashboard.feed import StatsFeed
from nanobatch.dashboard.protocol import Progress
from nanobatch.dashboard.text import (
    format_duration,
    format_kv_saved,
    format_percent,
    format_plural,
    format_rate,
    format_remaining,
    format_rows_done,
    format_share,
    kv_in_use,
)
from nanobatch.job.stats import JobStats, Phase

STALE_AFTER_S = 5.0


class PlainProgress(Progress):
    """Writes a line at the start, at every change of phase, every interval, and at the end.

    The interval's line appears whether or not a row, or anything at all, has finished.

    Args:
        stream: Where to write; standard error, most likely in a log file.
        interval_s: Seconds between lines.
    """

    def __init__(self, stream: TextIO, interval_s: float) -> None:
        self._stream = stream
        self._separator = " · " if "utf" in (stream.encoding or "").lower() else " | "
        self._feed = StatsFeed(self._draw, interval_s=interval_s)
        self._is_closed = False

    def update(self, stats: JobStats) -> None:
        """Let the next line show `stats`. Call it as often as you like."""
        before = self._feed.latest
        self._feed.put(stats)
        if before is not None and before.phase is not stats.phase and not stats.phase.is_final:
            self._feed.wake()

    def close(self, final_stats: JobStats | None = None) -> None:
        """Write the last line, unless nothing was ever begun; later calls do nothing.

        Args:
            final_stats: What the last line shows; None for the newest snapshot.
        """
        if self._is_closed:
            return
        self._is_closed = True
        last = final_stats or self._feed.latest
        if not self._feed.stop() or last is None or last.phase is Phase.STARTING:
            return
        try:
            self._draw(last, 0.0)
        except OSError:
            return

    def _draw(self, stats: JobStats, age_s: float) -> None:
        line = format_line(stats, age_s=age_s, separator=self._separator)
        self._stream.write(f"{datetime.now():%H:%M:%S} {line}\n")
        self._stream.flush()


def format_line(stats: JobStats, *, age_s: float = 0.0, separator: str = " · ") -> str:
    """Write a snapshot as one line.

    Args:
        stats: The snapshot.
        age_s: Seconds since it was taken; said when the run has been silent for long.
        separator: Stands between the items.
    """
    items = [f"{stats.phase.value} {format_share(stats)}"]
    if stats.phase not in (Phase.STARTING, Phase.LOADING):
        errors = format_plural(stats.num_rows_error, "error")
        items.append(f"{format_rows_done(stats)} ({errors})")
    if stats.phase is Phase.RUNNING:
        items += running_items(stats)
    if stats.phase.is_final:
        items += mean_items(stats)
    if stats.phase not in (Phase.STARTING, Phase.LOADING):
        items.append(f"{format_duration(stats.elapsed_s)} elapsed")
    items.append(format_remaining(stats))
    if stats.phase is Phase.RUNNING and age_s >= STALE_AFTER_S:
        items.append(f"no step for {format_duration(age_s)}")
    return separator.join(item for item in items if item)


def running_items(stats: JobStats) -> list[str]:
    """Write what only makes sense while rows run; an item may be empty."""
    return [
        f"{stats.num_rows_running:,} running",
        f"{stats.num_rows_waiting:,} waiting",
        f"prefill {format_rate(stats.prefill_tokens_per_s_now)} tok/s",
        f"decode {format_rate(stats.decode_tokens_per_s_now)} tok/s",
        f"hit {format_percent(stats.prefix_hit_rate)}",
        f"KV {format_percent(kv_in_use(stats))}",
        format_kv_saved(stats),
    ]


def mean_items(stats: JobStats) -> list[str]:
    """Write what remains of a run that has ended; an item may be empty."""
    return [
        f"prefill {format_rate(stats.prefill_tokens_per_s_mean)} tok/s mean",
        f"decode {format_rate(stats.decode_tokens_per_s_mean)} tok/s mean",
        f"hit {format_percent(stats.prefix_hit_rate)}",
        format_kv_saved(stats),
    ]
