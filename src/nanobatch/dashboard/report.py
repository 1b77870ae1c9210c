"""The text that ends a run: what came of the rows, what it cost, where the output is.

Knows the wording. Takes the same snapshot as the dashboard's last frame, so both agree.
"""

from nanobatch.dashboard.text import (
    format_count,
    format_duration,
    format_percent,
    format_plural,
    format_rate,
    format_rows_done,
)
from nanobatch.job.stats import JobStats

LABEL_WIDTH = 12


def render_summary(stats: JobStats, output: str | None = None) -> str:
    """Write a run's summary in at most a dozen lines, without colour.

    Args:
        stats: The run's last snapshot.
        output: Where the results are; None where there is no output to point at.

    Returns:
        The lines, ended by a newline.
    """
    headline = f"{stats.phase.value}: {format_rows_done(stats)}"
    sections = [
        ("rows", rows_text(stats)),
        ("tokens", tokens_text(stats)),
        ("speed", speed_text(stats)),
        ("prefix", prefix_text(stats)),
        ("preempted", preempted_text(stats)),
        ("time", time_text(stats)),
        ("note", max_tokens_text(stats)),
        ("note", surrogates_text(stats)),
        ("output", output or ""),
    ]
    lines = [f"  {name:<{LABEL_WIDTH}}{text}" for name, text in sections if text]
    return "\n".join([f"{headline} in {format_duration(stats.elapsed_s)}", *lines]) + "\n"


def rows_text(stats: JobStats) -> str:
    """Write rows by status, and the errors by code, most frequent first."""
    num_ok = stats.num_rows_done - stats.num_rows_error
    errors = format_plural(stats.num_rows_error, "error")
    by_count = sorted(stats.error_counts.items(), key=lambda item: (-item[1], item[0]))
    codes = ", ".join(f"{format_count(count)} {code}" for code, count in by_count)
    text = f"{format_count(num_ok)} ok, {errors}" + (f" ({codes})" if codes else "")
    if stats.num_rows_resumed:
        text += f"; {format_count(stats.num_rows_resumed)} from earlier runs"
    return text


def tokens_text(stats: JobStats) -> str:
    """Write this run's tokens in, cached and out."""
    return (
        f"{format_count(stats.num_prompt_tokens)} in, "
        f"{format_count(stats.num_cached_tokens)} cached, "
        f"{format_count(stats.num_output_tokens)} out"
    )


def speed_text(stats: JobStats) -> str:
    """Write the mean speeds since the first step."""
    prefill = format_rate(stats.prefill_tokens_per_s_mean)
    decode = format_rate(stats.decode_tokens_per_s_mean)
    return f"prefill {prefill} tok/s, decode {decode} tok/s (mean)"


def prefix_text(stats: JobStats) -> str:
    """Write how much of the prompts came from the prefix cache, and what sharing left to do."""
    computed = format_count(stats.num_prefill_tokens)
    text = f"{format_percent(stats.prefix_hit_rate)} hits, {computed} prefill tokens computed"
    if stats.num_saved_kv_tokens:
        text += f", {format_percent(stats.kv_saved_rate)} of KV reads saved"
    return text


def preempted_text(stats: JobStats) -> str:
    """Write how often sequences lost their KV blocks, and how many tokens that cost."""
    lost = format_plural(stats.num_preempted_tokens, "token")
    return f"{lost} in {format_plural(stats.num_preemptions, 'preemption')}"


def time_text(stats: JobStats) -> str:
    """Write the seconds of each phase, in their order."""
    spent = [(name, span) for name, span in stats.phase_seconds.items() if span >= 0.05]
    return ", ".join(f"{name} {span:,.1f}s" for name, span in spent)


def max_tokens_text(stats: JobStats) -> str:
    """Warn of texts that were cut off; empty when there are none."""
    if stats.num_rows_max_tokens == 0:
        return ""
    cut_off, done = format_count(stats.num_rows_max_tokens), format_count(stats.num_rows_done)
    return f"{cut_off} of {done} rows hit max_tokens"


def surrogates_text(stats: JobStats) -> str:
    """Tell of characters that were replaced while reading; empty when there are none."""
    if stats.num_surrogates == 0:
        return ""
    return f"{format_plural(stats.num_surrogates, 'lone surrogate')} replaced by U+FFFD"
