"""The options of `nanobatch run` about its output and the run itself."""

from typing import Annotated

import typer

from nanobatch.cli import options

OutputOption = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="OUTPUT",
        help="File of answers: .parquet, .jsonl, .jsonl.gz or .jsonl.zst; DIR/ for parts in "
        "Parquet, DIR.jsonl/ in JSONL; - prints JSONL as rows finish.",
        rich_help_panel=options.OUTPUT_PANEL,
        show_default=False,
    ),
]
ColumnsOption = Annotated[
    str,
    typer.Option(
        metavar="A,B|all|none",
        help="Input columns that pass through to the output.",
        rich_help_panel=options.OUTPUT_PANEL,
    ),
]
TokenIdsOption = Annotated[
    bool,
    typer.Option(
        "--token-ids", help="Write generated token ids.", rich_help_panel=options.OUTPUT_PANEL
    ),
]
LogprobsOption = Annotated[
    bool,
    typer.Option(
        "--logprobs",
        help="Write each generated token's log-probability.",
        rich_help_panel=options.OUTPUT_PANEL,
    ),
]
MaxErrorsOption = Annotated[
    str,
    typer.Option(
        metavar="N|any",
        help="Error rows up to which the exit code is 0 instead of 3.",
        rich_help_panel=options.OUTPUT_PANEL,
    ),
]
KeepJournalOption = Annotated[
    bool,
    typer.Option(
        "--keep-journal",
        help="Keep OUTPUT.nanobatch/ after the output is complete.",
        rich_help_panel=options.OUTPUT_PANEL,
    ),
]
ProgressOption = Annotated[
    bool,
    typer.Option(
        "--progress/--no-progress",
        help="Dashboard on a terminal, plain lines elsewhere; without it the summary alone.",
        rich_help_panel=options.PROGRESS_PANEL,
    ),
]
LogIntervalOption = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="Time between plain progress lines.",
        rich_help_panel=options.PROGRESS_PANEL,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Take the first N rows only.",
        rich_help_panel=options.INPUT_PANEL,
        show_default=False,
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Part I of N, from 0; writes OUTPUT-0000I-of-0000N; auto or auto/N in a Slurm array.",
        rich_help_panel=options.INPUT_PANEL,
        show_default=False,
    ),
]
OutputShapeOption = Annotated[
    str | None,
    typer.Option(
        metavar="flat|openai",
        help="Shape of JSONL rows (default: that of the first row).",
        rich_help_panel=options.OUTPUT_PANEL,
        show_default=False,
    ),
]
RowsPerPartOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Rows in each file of an output folder (default: 100,000).",
        rich_help_panel=options.OUTPUT_PANEL,
        show_default=False,
    ),
]
OverwriteOption = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace an output that is there, once the new one is complete.",
        rich_help_panel=options.START_OVER_PANEL,
    ),
]
RestartOption = Annotated[
    bool,
    typer.Option(
        "--restart",
        help="Discard finished rows of a run that was stopped.",
        rich_help_panel=options.START_OVER_PANEL,
    ),
]
RetryErrorsOption = Annotated[
    bool,
    typer.Option(
        "--retry-errors",
        help="Run rows again that are errors.",
        rich_help_panel=options.START_OVER_PANEL,
    ),
]
RepairJournalOption = Annotated[
    bool,
    typer.Option(
        "--repair-journal",
        help="Cut damage out of the journal and run what it held.",
        rich_help_panel=options.START_OVER_PANEL,
    ),
]
StopAfterOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Stop in good order after 7h30m, say, with exit code 75.",
        rich_help_panel=options.STOP_PANEL,
        show_default=False,
    ),
]
StopAfterErrorsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Stop once N rows are errors.",
        rich_help_panel=options.STOP_PANEL,
        show_default=False,
    ),
]
