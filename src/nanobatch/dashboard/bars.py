"""Bars and sparklines one line high, as styled segments.

Knows shapes and colours. Does not know what is measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import ConsoleOptions
from rich.segment import Segment
from rich.style import Style

DIM = Style(dim=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters of one kind of terminal; all are one cell wide.

    Attributes:
        filled: The part of a progress bar that is done.
        unfilled: The part that is not.
        parts: One character per part of a stacked bar. They differ where colour cannot tell.
        marks: The same parts in a legend.
        levels: Sparkline characters, lowest first.
        corners: Top left, top right, bottom left, bottom right of a box.
        horizontal: A box's upper and lower side.
        vertical: A box's left and right side.
        spinner: Characters of an animation that shows life.
        dot: Stands before a phase that needs no animation.
        separator: Stands between items of one line.
    """

    filled: str
    unfilled: str
    parts: tuple[str, str, str, str]
    marks: tuple[str, str, str, str]
    levels: str
    corners: tuple[str, str, str, str]
    horizontal: str
    vertical: str
    spinner: str
    dot: str
    separator: str


COLOR_GLYPHS = Glyphs(
    filled="━",
    unfilled="━",
    parts=("█", "█", "█", "░"),
    marks=("■", "■", "■", "□"),
    levels="▁▂▃▄▅▆▇█",
    corners=("╭", "╮", "╰", "╯"),
    horizontal="─",
    vertical="│",
    spinner="⠋⠙⠹⠸⠼⠴⠦⠧",
    dot="●",
    separator="·",
)
MONO_GLYPHS = Glyphs(
    filled="━",
    unfilled="─",
    parts=("█", "▓", "▒", "░"),
    marks=("█", "▓", "▒", "░"),
    levels=COLOR_GLYPHS.levels,
    corners=COLOR_GLYPHS.corners,
    horizontal=COLOR_GLYPHS.horizontal,
    vertical=COLOR_GLYPHS.vertical,
    spinner=COLOR_GLYPHS.spinner,
    dot=COLOR_GLYPHS.dot,
    separator=COLOR_GLYPHS.separator,
)
ASCII_GLYPHS = Glyphs(
    filled="#",
    unfilled="-",
    parts=("#", "+", "=", "."),
    marks=("#", "+", "=", "."),
    levels="_.-=+*#@",
    corners=("+", "+", "+", "+"),
    horizontal="-",
    vertical="|",
    spinner="|/-\\",
    dot="*",
    separator="-",
)


def choose_glyphs(options: ConsoleOptions, *, has_color: bool) -> Glyphs:
    """Choose the richest characters that the terminal can show and tell apart."""
    if options.ascii_only:
        return ASCII_GLYPHS
    return COLOR_GLYPHS if has_color else MONO_GLYPHS


def progress_bar(fraction: float, width: int, *, glyphs: Glyphs, style: Style) -> list[Segment]:
    """Draw a bar that is `fraction` (0 to 1) full, `width` cells wide."""
    num_filled = max(0, min(width, int(fraction * width)))
    return [
        Segment(glyphs.filled * num_filled, style),
        Segment(glyphs.unfilled * (width - num_filled), DIM),
    ]


def pulse_bar(elapsed_s: float, width: int, *, glyphs: Glyphs, style: Style) -> list[Segment]:
    """Draw a bar of unknown length: a short piece that runs through it, eight cells a second."""
    piece = max(1, width // 6)
    start = int(elapsed_s * 8) % (width + piece) - piece
    first, last = max(0, start), min(width, start + piece)
    return [
        Segment(glyphs.unfilled * first, DIM),
        Segment(glyphs.filled * (last - first), style),
        Segment(glyphs.unfilled * (width - last), DIM),
    ]


def split_width(amounts: Sequence[int], width: int) -> list[int]:
    """Share `width` cells among amounts in proportion; what is not zero gets a cell if it can.

    Returns:
        One width per amount, `width` in all; all zero where the amounts are.
    """
    total = sum(amounts)
    if total <= 0:
        return [0] * len(amounts)
    edges = [round(sum(amounts[: place + 1]) * width / total) for place in range(len(amounts))]
    widths = [edge - before for before, edge in zip([0, *edges], edges, strict=False)]
    for place, amount in enumerate(amounts):
        widest = max(range(len(widths)), key=widths.__getitem__)
        if amount > 0 and widths[place] == 0 and widths[widest] > 1:
            widths[place], widths[widest] = 1, widths[widest] - 1
    return widths


def stacked_bar(
    amounts: Sequence[int], width: int, *, glyphs: Glyphs, styles: Sequence[Style]
) -> list[Segment]:
    """Draw four amounts as one bar of `width` cells; without any amount, the last part fills it."""
    widths = split_width(amounts, width)
    if sum(widths) == 0:
        widths[-1] = width
    return [
        Segment(glyph * cells, style)
        for glyph, cells, style in zip(glyphs.parts, widths, styles, strict=True)
    ]


def sparkline(values: Sequence[float], width: int, *, glyphs: Glyphs) -> str:
    """Draw the newest `width` values from zero to their maximum, the newest at the right end."""
    shown = values[-width:] if width > 0 else ()
    highest = max(shown, default=0.0)
    if highest <= 0:
        return glyphs.levels[0] * len(shown)
    top = len(glyphs.levels) - 1
    return "".join(glyphs.levels[round(max(0.0, value) / highest * top)] for value in shown)
