"""One picture of a run, as a rich renderable: a box of up to sixteen lines, or six plain ones.

Knows which number stands where. Does not know when it is drawn, or on what.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from rich.cells import set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from nanobatch.dashboard.bars import (
    DIM,
    Glyphs,
    choose_glyphs,
    progress_bar,
    pulse_bar,
    sparkline,
    stacked_bar,
)
from nanobatch.dashboard.text import (
    format_count,
    format_duration,
    format_gib,
    format_kv_saved,
    format_percent,
    format_plural,
    format_rate,
    format_remaining,
    format_rows_done,
    format_share,
    kv_in_use,
    phase_fraction,
)
from nanobatch.job.stats import JobStats, Phase

Line: TypeAlias = list[Segment]

MAX_WIDTH = 120
MIN_BOX_WIDTH = 60
MIN_BOX_HEIGHT = 17
LABEL_WIDTH = 12
NUMBER_WIDTH = 9

BOLD = Style(bold=True)
GAP = [Segment("  ")]
ERROR = Style(color="red", bold=True)
SPARK = Style(color="cyan")
PART_STYLES = (Style(color="green"), Style(color="magenta"), Style(color="blue"), DIM)
PHASE_STYLES = {
    Phase.STARTING: Style(color="yellow", bold=True),
    Phase.LOADING: Style(color="yellow", bold=True),
    Phase.RUNNING: Style(color="green", bold=True),
    Phase.FINALIZING: Style(color="cyan", bold=True),
    Phase.FINISHED: Style(color="green", bold=True),
    Phase.STOPPED: Style(color="yellow", bold=True),
}


class StatsFrame:
    """A snapshot, drawn to fit the terminal: a box, or a few plain lines where space is scarce.

    Lines are built as segments rather than with rich's tables: a frame costs a fraction of a
    millisecond, which four times a second is nothing beside the run.

    Args:
        stats: What to draw.
        footer: A line under the box, such as the progress bar of a library that is loading
            weights; empty for none.
    """

    def __init__(self, stats: JobStats, *, footer: str = "") -> None:
        self.stats = stats
        self.footer = footer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        has_color = console.color_system is not None and not console.no_color
        glyphs = choose_glyphs(options, has_color=has_color)
        width = min(options.max_width, MAX_WIDTH)
        if width < MIN_BOX_WIDTH or options.size.height < MIN_BOX_HEIGHT:
            lines = [Segment.adjust_line_length(line, width) for line in self._plain_lines(glyphs)]
        else:
            lines = list(self._box_lines(width, glyphs))
        if self.footer:
            lines.append([Segment(cut(f" {self.footer}", width - 1), DIM)])
        for place, line in enumerate(lines):
            if place:
                yield Segment.line()
            yield from line

    def _plain_lines(self, glyphs: Glyphs) -> list[Line]:
        """Say the same in six lines that survive being cut on the right."""
        stats, dot = self.stats, f" {glyphs.separator} "
        items = (
            (format_share(stats), format_remaining(stats)),
            (format_rows_done(stats), format_plural(stats.num_rows_error, "error")),
            (f"{stats.num_rows_running:,} running", f"{stats.num_rows_waiting:,} waiting"),
            (
                f"prefill {format_rate(stats.prefill_tokens_per_s_now)}",
                f"decode {format_rate(stats.decode_tokens_per_s_now)} tok/s",
            ),
            (
                f"hit {format_percent(stats.prefix_hit_rate)}",
                f"KV {format_percent(kv_in_use(stats))}",
                format_plural(stats.num_preemptions, "preemption"),
                format_kv_saved(stats),
            ),
        )
        texts = [dot.join(filter(None, item)) for item in items]
        first = [Segment(stats.phase.value, PHASE_STYLES[stats.phase]), Segment(dot + texts[0])]
        return [first, *([Segment(text)] for text in texts[1:])]

    def _box_lines(self, width: int, glyphs: Glyphs) -> Iterator[Line]:
        inner = width - 4
        top_left, top_right, bottom_left, bottom_right = glyphs.corners
        name = f"nanobatch {glyphs.separator} {self.stats.job_name}".rstrip(f" {glyphs.separator}")
        title = f" {cut(name, inner - 4)} "
        rule = glyphs.horizontal * (inner + 2)
        yield [
            Segment(top_left + glyphs.horizontal, DIM),
            Segment(title, BOLD),
            Segment(rule[Segment(title).cell_length + 1 :] + top_right, DIM),
        ]
        for line in self._inner_lines(inner, glyphs):
            fitted = Segment.adjust_line_length(line, inner)
            yield [
                Segment(glyphs.vertical + " ", DIM),
                *fitted,
                Segment(" " + glyphs.vertical, DIM),
            ]
        yield [Segment(bottom_left + rule + bottom_right, DIM)]

    def _inner_lines(self, width: int, glyphs: Glyphs) -> Iterator[Line]:
        yield phase_line(self.stats, width, glyphs)
        yield progress_line(self.stats, width, glyphs)
        yield []
        yield from row_lines(self.stats, width)
        yield []
        yield from kv_lines(self.stats, width, glyphs)
        yield []
        yield from metric_lines(self.stats, width, glyphs)


def cut(text: str, width: int) -> str:
    """Shorten `text` to at most `width` cells, never padding it."""
    return set_cell_size(text, width).rstrip() if Segment(text).cell_length > width else text


def phase_line(stats: JobStats, width: int, glyphs: Glyphs) -> Line:
    """Say what the run is doing, with which model, and for how long already."""
    waits = stats.phase in (Phase.STARTING, Phase.LOADING, Phase.FINALIZING)
    beat = int(stats.elapsed_s * 4) % len(glyphs.spinner)
    mark = glyphs.spinner[beat] if waits else glyphs.dot
    phase = f"{mark} {stats.phase.value}"
    elapsed = f"{format_duration(stats.elapsed_s)} elapsed"
    resumed = (
        f"{format_count(stats.num_rows_resumed)} rows resumed" if stats.num_rows_resumed else ""
    )
    details = [detail for detail in (resumed, stats.model_name) if detail]
    middle = "".join(f" {glyphs.separator} {detail}" for detail in details)
    room = width - len(phase) - len(elapsed) - 2
    return [
        Segment(phase, PHASE_STYLES[stats.phase]),
        Segment(set_cell_size(cut(middle, room), room + 2)),
        Segment(elapsed, DIM),
    ]


def progress_line(stats: JobStats, width: int, glyphs: Glyphs) -> Line:
    """Draw the present phase's bar, its share and the time left."""
    fraction, style = phase_fraction(stats), PHASE_STYLES[stats.phase]
    share, remaining = format_share(stats), format_remaining(stats)
    figures = [Segment(f"{share:>9}", BOLD), Segment(f"{remaining:>13}" if remaining else "")]
    bar_width = width - cell_length(figures)
    if fraction is None:
        bar = pulse_bar(stats.elapsed_s, bar_width, glyphs=glyphs, style=style)
    else:
        bar = progress_bar(fraction, bar_width, glyphs=glyphs, style=style)
    return bar + figures


def row_lines(stats: JobStats, width: int) -> tuple[Line, Line]:
    """Show the four row counts, each above its name."""
    narrow = width * 2 // 9
    widths = (width - 3 * narrow, narrow, narrow, narrow)
    total = "" if stats.num_rows_total is None else f" of {format_count(stats.num_rows_total)}"
    tiles = (
        (stats.num_rows_done, f"rows done{total}" if narrow > 13 else f"done{total}", BOLD),
        (stats.num_rows_running, "running sequences" if narrow > 18 else "running", BOLD),
        (stats.num_rows_waiting, "waiting in queue" if narrow > 17 else "waiting", BOLD),
        (stats.num_rows_error, "errors", ERROR if stats.num_rows_error else BOLD),
    )
    placed = list(zip(tiles, widths, strict=True))
    return (
        [Segment(format_count(count).ljust(room), style) for (count, _, style), room in placed],
        [Segment(name.ljust(room), DIM) for (_, name, _), room in placed],
    )


def kv_lines(stats: JobStats, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Show the KV pool as one stacked bar above its legend, and what sharing it saves."""
    names = ("used", "shared", "cached", "free")
    amounts = (
        stats.num_blocks_used,
        stats.num_blocks_shared,
        stats.num_blocks_cached,
        stats.num_blocks_free,
    )
    in_use = f"{format_percent(kv_in_use(stats))} in use"
    room = width - LABEL_WIDTH - 16
    bar = stacked_bar(amounts, room, glyphs=glyphs, styles=PART_STYLES)
    legend = [Segment(" " * (LABEL_WIDTH if width >= 72 else 0))]
    for name, amount, mark, style in zip(names, amounts, glyphs.marks, PART_STYLES, strict=True):
        legend += [Segment(mark, style), Segment(f" {name} ", DIM)]
        legend.append(Segment(f"{format_count(amount)}   "))
    yield [label("KV blocks"), *bar, Segment(f"{in_use:>16}")]
    yield legend
    if stats.num_saved_kv_tokens:
        saved = format_percent(stats.kv_saved_rate).removesuffix(" %")
        yield metric("KV reads", saved, " % saved by sharing")


def metric_lines(stats: JobStats, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Show speeds with their history, then cache hits, preemptions and the GPU, in columns."""
    tokens = " tok/s"
    prefill = metric("prefill", format_rate(stats.prefill_tokens_per_s_now), tokens)
    yield prefill + GAP + metric("mean", format_rate(stats.prefill_tokens_per_s_mean), tokens)
    decode = metric("decode", format_rate(stats.decode_tokens_per_s_now), tokens)
    decode += GAP + metric("mean", format_rate(stats.decode_tokens_per_s_mean), tokens)
    room = width - cell_length(decode) - 2
    spark = sparkline(stats.decode_history, room, glyphs=glyphs) if room >= 6 else ""
    yield [*decode, Segment("  " + spark.rjust(max(0, room)), SPARK)]
    hits = metric("prefix hits", format_percent(stats.prefix_hit_rate).removesuffix(" %"), " %    ")
    yield hits + GAP + metric("preemptions", format_count(stats.num_preemptions), "")
    if stats.gpu_memory_used_bytes is not None or stats.gpu_utilization is not None:
        yield gpu_line(stats, width)


def gpu_line(stats: JobStats, width: int) -> Line:
    """Show how busy the GPU is and how full its memory, as far as either is known."""
    used, total = stats.gpu_memory_used_bytes, stats.gpu_memory_total_bytes
    line: Line = []
    if stats.gpu_utilization is not None:
        busy = format_percent(stats.gpu_utilization).removesuffix(" %")
        line += metric("GPU busy", busy, " %    ") + GAP
    if used is not None:
        unit = " GiB" if total is None or width < 72 else f" of {format_gib(total)} GiB"
        line += metric("GPU memory", format_gib(used), unit)
    return line


def label(name: str) -> Segment:
    """Write what a line is about, in the label column."""
    return Segment(name.ljust(LABEL_WIDTH), DIM)


def metric(name: str, number: str, unit: str) -> Line:
    """Write a name, its right-aligned number and the unit, in columns."""
    return [label(name), Segment(number.rjust(NUMBER_WIDTH), BOLD), Segment(unit, DIM)]


def cell_length(segments: Iterable[Segment]) -> int:
    """Count the terminal cells of a line."""
    return sum(segment.cell_length for segment in segments)
