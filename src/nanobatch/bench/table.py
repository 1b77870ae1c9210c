"""Results and profiles as tables on a terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from nanobatch.bench.events import Profile
from nanobatch.bench.results import Result

MAX_KERNEL_NAME_CHARS = 60

COLUMNS = (
    "workload",
    "engine",
    "seconds",
    "out tok/s",
    "all tok/s",
    "prefill",
    "÷ ideal",
    "÷ distinct",
    "hits",
    "MBU",
    "MFU",
    "limit s",
    "of limit",
)


def result_table(results: Sequence[Result]) -> Table:
    """Return the engines of each workload, side by side."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if place < 2 else "right", no_wrap=True)
    workloads = list(dict.fromkeys(result.workload.name for result in results))
    for result in sorted(results, key=lambda result: workloads.index(result.workload.name)):
        table.add_row(
            result.workload.name,
            result.engine,
            f"{result.seconds:.2f} ±{result.spread / 2:.1%}",
            f"{result.output_tok_per_s:,.0f}",
            f"{result.total_tok_per_s:,.0f}",
            f"{result.num_prefill_tokens:,}",
            f"{result.ideal_ratio:.3f}",
            f"{result.distinct_ratio:.3f}",
            f"{result.hit_rate:.0%}",
            f"{result.mbu:.0%}",
            f"{result.mfu:.0%}",
            f"{result.limit.seconds:.2f}",
            f"{result.limit_fraction:.0%}",
        )
    return table


def profile_heading(engine: str, profile: Profile) -> str:
    """Return what a profile says in one line."""
    if profile.idle_share is None or profile.host_gap_share is None:
        what = "operations on the CPU"
    else:
        what = (
            f"the GPU was idle {profile.idle_share:.1%} of the time, {profile.host_gap_share:.1%} "
            "waiting for the host"
        )
    return (
        f"{engine} {profile.workload}, {profile.window_s:.2f} s of a run: {what}; "
        f"trace in {profile.trace}"
    )


def profile_table(profile: Profile) -> Table:
    """Return the kernels that took longest."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("kernel" if profile.idle_share is not None else "operation")
    for column in ("calls", "seconds", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    for kernel in profile.kernels:
        name = kernel.name
        if len(name) > MAX_KERNEL_NAME_CHARS:
            name = f"{name[: MAX_KERNEL_NAME_CHARS - 1]}…"
        table.add_row(name, f"{kernel.num_calls:,}", f"{kernel.seconds:.4f}", f"{kernel.share:.1%}")
    return table
