"""The dashboard on a terminal: one frame, drawn over the one before.

Knows rich's Live and the pace of redraws. Does not know what a frame shows.
"""

import sys

from rich.console import Console
from rich.live import Live
from rich.text import Text

from nanobatch.dashboard.feed import StatsFeed
from nanobatch.dashboard.frame import StatsFrame
from nanobatch.dashboard.protocol import Progress
from nanobatch.dashboard.relay import StderrRelay
from nanobatch.job.stats import JobStats, Phase

# Three a second leaves room for the last frame: no second ever sees more than four.
REDRAW_INTERVAL_S = 1 / 3
HINT = "Ctrl-C stops; finished rows are kept"


class LiveDashboard(Progress):
    """Draws the newest snapshot three times a second until closed; the last frame stays.

    It starts with the first `update`. Whatever is printed to `sys.stderr` or logged there in
    the meantime appears above the frame; a progress bar printed there (weights being loaded)
    appears as a line under it. Standard output is left alone.

    Drawing happens on a thread of its own, so `update` costs a microsecond and a terminal that
    hangs does not hold up the run.

    Args:
        console: Where to draw; a terminal on standard error.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._feed = StatsFeed(self._draw, interval_s=REDRAW_INTERVAL_S)
        self._relay = StderrRelay(sys.stderr)
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._is_closed = False

    def update(self, stats: JobStats) -> None:
        """Show `stats` with the next redraw. Call it as often as you like."""
        if self._feed.latest is None and not self._is_closed:
            self._start()
        self._feed.put(stats)

    def close(self, final_stats: JobStats | None = None) -> None:
        """Draw the last frame and leave it on the screen; later calls do nothing.

        A run that ended before anything was loaded (refused, nothing to do) leaves no frame.

        Args:
            final_stats: What the last frame shows; None for the newest snapshot.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if not self._feed.stop():
            self._relay.uninstall()
            return
        last = final_stats or self._feed.latest
        try:
            if last is not None:
                self._start()
                self._live.transient = last.phase is Phase.STARTING
                self._live.update(StatsFrame(last))
                self._print_above(self._relay.take_lines())
                self._live.stop()
        except OSError:
            # The terminal is gone, and with it whoever would have read the last frame.
            return
        finally:
            self._relay.uninstall()

    def _start(self) -> None:
        if self._live.is_started:
            return
        self._live.start()
        # rich hides the cursor; a run that is killed outright could never give it back.
        self._console.show_cursor(True)
        self._relay.install()

    def _draw(self, stats: JobStats, age_s: float) -> None:
        self._live.update(StatsFrame(stats, footer=self._relay.activity or HINT))
        lines = self._relay.take_lines()
        if lines:
            self._print_above(lines)
        else:
            self._live.refresh()

    def _print_above(self, lines: list[str]) -> None:
        """Print whole lines above the frame, which rich redraws below them in the same write."""
        if lines:
            self._console.print(Text("\n").join(map(Text.from_ansi, lines)), soft_wrap=True)
