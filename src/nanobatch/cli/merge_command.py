"""`nanobatch merge`: the shards of a split job become the output of the whole job."""

import sys
from typing import Annotated

import typer

from nanobatch.cli import options

PROGRESS_DELAY_S = 1.0
"""Seconds after which a merge shows a bar: most are done before."""


def merge(
    shards: Annotated[
        list[str],
        typer.Argument(
            metavar="SHARD...",
            help="Outputs of all shards, in any order; quoted patterns are expanded, too.",
            show_default=False,
        ),
    ],
    *,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUTPUT",
            help="File to merge into: .parquet, or .jsonl with or without .gz or .zst.",
            show_default=False,
        ),
    ],
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace an output that is there, once the new one is complete."
        ),
    ] = False,
    progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="Show a bar on a terminal.")
    ] = True,
    debug: options.DebugOption = False,
) -> int:
    """Join the shards of a split job, proving that no row is missing, doubled or foreign."""
    from tqdm import tqdm

    from nanobatch.errors import Stopped
    from nanobatch.job.merge import merge_shards
    from nanobatch.job.stop_signal import StopSignal, exit_code_of

    del debug  # the program itself looks for it
    stop = StopSignal()
    is_shown = progress and sys.stderr.isatty()
    with (
        stop.installed(),
        stop.deferred(),
        tqdm(unit="row", delay=PROGRESS_DELAY_S, disable=not is_shown, leave=False) as bar,
    ):

        def on_progress(num_rows: int, num_job_rows: int) -> None:
            if stop.reason is not None:
                raise Stopped(f"stopped by {stop.reason.text}")
            bar.total = num_job_rows
            bar.update(num_rows - bar.n)

        try:
            result = merge_shards(shards, output, overwrite=overwrite, on_progress=on_progress)
        except Stopped as stopped:
            assert stop.received is not None, "only a signal stops a merge"
            sys.stderr.write(f"{stopped.message}: run the same line again to merge\n")
            return exit_code_of(stop.received)
    rows = f"{result.num_rows:,} rows, {result.num_errors:,} of them errors"
    if result.was_complete:
        sys.stderr.write(f"nothing to do: {output} is complete ({rows})\n")
    else:
        sys.stderr.write(f"merged {result.num_shards:,} shards into {output}: {rows}\n")
    return 0
