"""`nanobatch status`: how far a job is, told from its files alone."""

import json
import sys
from typing import Annotated

import typer


def status(
    output: Annotated[
        str,
        typer.Argument(
            metavar="OUTPUT", help="Output of the job, as in `nanobatch run ... -o OUTPUT`."
        ),
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Show rows done, rate and time left of a job, running or stopped, also from another node."""
    from nanobatch.cli.status_text import render_status, status_json
    from nanobatch.job.observe_shards import observe_output

    del debug  # the program itself looks for it
    observed = observe_output(output)
    text = f"{json.dumps(status_json(observed))}\n" if as_json else render_status(observed)
    # A file's name may hold what the terminal's encoding cannot say.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    return 0
