"""What `nanobatch validate` prints of a report. Knows the wording, not the checks."""

import re
import textwrap
from collections import Counter

from nanobatch.cli.sharing_text import render_sharing
from nanobatch.job.validate import ValidationReport
from nanobatch.request import RowError

BAR_WIDTH = 40
HINT_WIDTH = 100
MAX_PROMPT_CHARS = 2000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def render_bad_row(location: str, error: RowError) -> str:
    """Return the line for one bad row."""
    return f"{location}: {error.code.value}: {error.message}\n"


def render_report(report: ValidationReport) -> str:
    """Return the lines that end a validation."""
    num_good = report.num_rows - report.num_errors
    lines = [f"{report.num_rows:,} rows: {num_good:,} good, {report.num_errors:,} bad"]
    if report.unknown_parameters:
        lines.append(f"unknown parameters, ignored: {', '.join(report.unknown_parameters)}")
    if num_good:
        lines += ["", *_histogram(report.prompt_lengths)]
        if report.sharing is not None:
            lines += ["", *render_sharing(report.sharing)]
        if report.template_hint is not None:
            hint = f"hint: {report.template_hint.text}"
            lines += ["", *textwrap.wrap(hint, HINT_WIDTH, subsequent_indent="  ")]
        lines += ["", "first prompt, as the model sees it:", *_first_prompt(report)]
    return "\n".join(lines) + "\n"


def _histogram(lengths: Counter[int]) -> list[str]:
    """Return prompt lengths in buckets between powers of two, with their median."""
    buckets: Counter[int] = Counter()
    for length, count in lengths.items():
        buckets[length.bit_length()] += count
    largest = max(buckets.values())
    lines = [
        f"prompt tokens: {min(lengths):,} to {max(lengths):,}, median {_median(lengths):,}, "
        f"{sum(length * count for length, count in lengths.items()):,} in all"
    ]
    for bits in range(min(buckets), max(buckets) + 1):
        bar = "█" * -(-buckets[bits] * BAR_WIDTH // largest)
        label = f"{1 << bits >> 1:,}-{(1 << bits) - 1:,}"
        lines.append(f"  {label:>15}  {buckets[bits]:>9,}  {bar}".rstrip())
    return lines


def _median(lengths: Counter[int]) -> int:
    middle = sum(lengths.values()) // 2
    for length in sorted(lengths):
        middle -= lengths[length]
        if middle < 0:
            return length
    raise AssertionError("an empty histogram has no median")


def _first_prompt(report: ValidationReport) -> list[str]:
    text = report.first_prompt or ""
    cut = text if len(text) <= MAX_PROMPT_CHARS else text[:MAX_PROMPT_CHARS] + " […]"
    # A terminal must not do what a row says.
    shown = _CONTROL.sub(lambda match: repr(match[0])[1:-1], cut)
    return [f"  | {line}" for line in shown.removesuffix("\n").split("\n")]
