"""`nanobatch export --partial`: what is finished of a job, as a file."""

import sys
from typing import Annotated

import typer

from nanobatch.errors import ConfigError


def export(
    output: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT", help="Output of the job, as in `nanobatch run ... -o OUTPUT`."
        ),
    ],
    file: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the finished rows go; the suffix says in which format, as for a run.",
        ),
    ],
    *,
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out the rows that are not finished.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace FILE if it is there.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Write what is finished so far as a valid file, while the job runs or after it stopped."""
    from nanobatch.job.export import export_partial

    del debug  # the program itself looks for it
    if not partial:
        raise ConfigError(
            "export writes what is finished of a job, and only with --partial",
            hint="add --partial; a complete output needs no export",
        )
    exported = export_partial(output, file, overwrite=overwrite)
    total = "" if exported.num_job_rows is None else f" of {exported.num_job_rows:,}"
    sys.stderr.write(f"exported {exported.num_rows:,}{total} rows to {file}\n")
    return 0
