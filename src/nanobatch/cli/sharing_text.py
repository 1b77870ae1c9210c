"""What `nanobatch validate` says of what prompts share. Knows the wording, not the counting."""

from nanobatch.dashboard.text import format_count, format_percent
from nanobatch.job.sharing_report import SharingLevel, SharingReport

MAX_LEVELS = 6
"""Levels that have a line of their own; those below are summed up."""

FAR_FRACTION = 0.05
"""Share of prompt tokens from which on rows that share them too far apart deserve a hint."""

_HEADER = ("level", "beginnings", "rows each", "at most", "tokens each", "reused")
_WIDTHS = (7, 12, 11, 10, 13, 10)


def render_sharing(sharing: SharingReport) -> list[str]:
    """Return the lines that say which beginnings rows share and what that saves a run."""
    if sharing.num_shared_tokens == 0:
        return [f"sharing: no two rows begin with the same {sharing.block_size} tokens"]
    bound = "at least " if sharing.is_lower_bound else ""
    lines = [
        f"sharing: {bound}{format_percent(sharing.shared_fraction)} of prompt tokens are "
        "beginnings that other rows have too",
        *_levels(sharing),
        _prefill(sharing),
        _decode(sharing),
    ]
    if sharing.reused_fraction - sharing.near_fraction >= FAR_FRACTION:
        lines += _too_far_apart(sharing, bound)
    return lines


def _levels(sharing: SharingReport) -> list[str]:
    """Return a table of the beginnings by level."""
    lines = [_table_line(_HEADER)]
    for place, level in enumerate(sharing.levels[:MAX_LEVELS], start=1):
        lines.append(_table_line(_cells(str(place), level, sharing.num_prompt_tokens)))
    deeper = sharing.levels[MAX_LEVELS:]
    if deeper:
        count = format_count(sum(level.num_beginnings for level in deeper))
        reused = sum(level.num_reused_tokens for level in deeper)
        share = format_percent(reused / sharing.num_prompt_tokens)
        lines.append(_table_line(("deeper", count, "", "", "", share)))
    return lines


def _cells(place: str, level: SharingLevel, num_prompt_tokens: int) -> tuple[str, ...]:
    counts = (level.num_beginnings, level.typical_rows, level.most_rows, level.typical_tokens)
    share = format_percent(level.num_reused_tokens / num_prompt_tokens)
    return (place, *map(format_count, counts), share)


def _table_line(cells: tuple[str, ...]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _prefill(sharing: SharingReport) -> str:
    computed = format_count(sharing.num_prefill_tokens)
    return (
        f"  prefill: {computed} of {format_count(sharing.num_prompt_tokens)} prompt tokens are "
        f"computed, {format_percent(sharing.prefill_saved_fraction)} are reused"
    )


def _decode(sharing: SharingReport) -> str:
    return (
        f"  decode: about {format_percent(sharing.kv_saved_fraction)} of KV reads are saved, "
        f"with up to {format_count(sharing.num_running_seqs)} answers at once, of "
        f"{format_count(sharing.num_output_tokens)} tokens or max_tokens if less"
    )


def _too_far_apart(sharing: SharingReport, bound: str) -> list[str]:
    return [
        f"  hint: {bound}{format_percent(sharing.reused_fraction)} could be reused, but rows that "
        "begin alike are far apart: a run looks ahead",
        f"  by {format_count(sharing.window_rows)} rows and {format_count(sharing.window_tokens)} "
        "tokens; sort the rows, or raise --window-rows and --window-tokens",
    ]
