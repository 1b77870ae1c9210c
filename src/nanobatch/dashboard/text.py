"""Numbers as people read them, the same in dashboard, plain lines and summary.

Knows how a value is written. Does not know where it stands or in what colour.
"""

from nanobatch.job.stats import JobStats, Phase


def format_count(count: int) -> str:
    """Write a count with thousands separators: `1,204`."""
    return f"{count:,}"


def format_rate(per_s: float) -> str:
    """Write a rate without its unit: `3,310`, or with a decimal below a hundred: `7.3`."""
    return f"{per_s:,.1f}" if 0.0 < per_s < 99.95 else f"{per_s:,.0f}"


def format_percent(fraction: float) -> str:
    """Write a share of one with one decimal, rounded down: 100 % means that all of it is there."""
    # The epsilon undoes binary rounding: 0.29 * 1000 is 289.99999999999994.
    per_mille = int(fraction * 1000 + 1e-6)
    return f"{per_mille / 10:.1f} %"


def format_duration(seconds: float) -> str:
    """Write a time span in its two largest units: `42s`, `4m10s`, `7h05m`, `2d03h`."""
    whole = round(seconds)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02}h"
    if hours:
        return f"{hours}h{minute:02}m"
    if minutes:
        return f"{minutes}m{second:02}s"
    return f"{second}s"


def format_gib(num_bytes: int) -> str:
    """Write bytes as GiB without the unit: `61.2`."""
    return f"{num_bytes / 2**30:,.1f}"


def format_plural(count: int, noun: str) -> str:
    """Write a count and its noun: `1 error`, `3 errors`."""
    return f"{format_count(count)} {noun}" if count == 1 else f"{format_count(count)} {noun}s"


def kv_in_use(stats: JobStats) -> float:
    """Share of the KV blocks that running sequences hold, 0 to 1."""
    in_use = stats.num_blocks_used + stats.num_blocks_shared
    return in_use / stats.num_blocks if stats.num_blocks else 0.0


def format_kv_saved(stats: JobStats) -> str:
    """Write the share of KV reads that sharing saved; empty while nothing was."""
    if stats.num_saved_kv_tokens == 0:
        return ""
    return f"KV reads saved {format_percent(stats.kv_saved_rate)}"


def phase_fraction(stats: JobStats) -> float | None:
    """Share of the present phase that is done, None where it is not known.

    While rows run it is not known before the first is done, nor ever for rows from a pipe.
    """
    if stats.phase is Phase.STARTING:
        return None
    if stats.phase is Phase.LOADING:
        return stats.load_fraction or None
    if stats.phase is Phase.FINALIZING:
        return stats.finalize_fraction
    if stats.phase is Phase.RUNNING and stats.input_fraction == 0.0:
        return None
    return stats.input_fraction


def format_share(stats: JobStats) -> str:
    """Write how far the present phase is: a share where one is known, else its seconds so far."""
    fraction = phase_fraction(stats)
    if fraction is not None:
        return format_percent(fraction)
    return format_duration(stats.phase_seconds.get(stats.phase.value, stats.elapsed_s))


def format_remaining(stats: JobStats) -> str:
    """Write the time left while rows run; empty when there is no estimate."""
    if stats.phase is not Phase.RUNNING or stats.eta_s is None:
        return ""
    return f"ETA {format_duration(stats.eta_s)}"


def format_rows_done(stats: JobStats) -> str:
    """Write the rows done, and of how many once that is known."""
    total = "" if stats.num_rows_total is None else f"/{format_count(stats.num_rows_total)}"
    return f"{format_count(stats.num_rows_done)}{total} rows"
