"""Chooses how a run is seen: live on a terminal, plain lines elsewhere, or not at all.

Knows the three ways and nothing of their drawing.
"""

from typing import TextIO

from rich.console import Console

from nanobatch.dashboard.live import LiveDashboard
from nanobatch.dashboard.plain import PlainProgress
from nanobatch.dashboard.protocol import Progress, SilentProgress


def make_progress(
    stream: TextIO, *, show_progress: bool, is_terminal: bool, interval_s: float
) -> Progress:
    """Choose how to show a run.

    Args:
        stream: Where to draw: standard error.
        show_progress: False for nothing at all.
        is_terminal: Whether `stream` is a terminal that nothing else writes to: say False when
            results go to standard output and that is a terminal too.
        interval_s: Seconds between plain lines.
    """
    if not show_progress:
        return SilentProgress()
    console = Console(file=stream, force_terminal=is_terminal)
    if is_terminal and not console.is_dumb_terminal:
        return LiveDashboard(console)
    return PlainProgress(stream, interval_s)
