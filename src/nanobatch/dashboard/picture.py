"""The dashboard as an SVG picture, for the README.

Knows rich's SVG export. Does not know where the snapshot comes from.
"""

import io
from pathlib import Path

from rich.console import Console

from nanobatch.dashboard.frame import StatsFrame
from nanobatch.job.stats import JobStats

WIDTH = 96
HEIGHT = 24


def export_svg(path: Path, stats: JobStats, *, title: str = "nanobatch run") -> None:
    """Draw `stats` as it looks on a terminal and write that to `path`.

    The same snapshot gives the same bytes.

    Args:
        path: The SVG file; replaced if it exists.
        stats: What to draw.
        title: Written in the picture's window bar.
    """
    console = Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        height=HEIGHT,
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
    )
    console.print(StatsFrame(stats))
    path.write_text(console.export_svg(title=title), encoding="utf-8")
