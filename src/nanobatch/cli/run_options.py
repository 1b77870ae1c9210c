"""The command-line options that only `nanobatch run` has."""

from typing import Annotated

import typer

from nanobatch.cli import options

OutputOption = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="OUTPUT",
        help="File of answers: .parquet or .jsonl; - prints JSONL as rows finish.",
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
MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most tokens to generate (default: the room left, at most 4,096).",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        metavar="T",
        help="0 takes the most likely token (default: the model's, else 1).",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="Sample from the most likely tokens that reach this probability.",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="Sample from this many most likely tokens; 0 for all.",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="Drop tokens less likely than this share of the most likely.",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Run seed; each row draws its own from it and its index.",
        rich_help_panel=options.SAMPLING_PANEL,
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="String that ends an answer; may be given several times.",
        rich_help_panel=options.SAMPLING_PANEL,
        show_default=False,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(metavar="auto|cpu|cuda", help="Device.", rich_help_panel=options.ENGINE_PANEL),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        metavar="DTYPE",
        help="auto, bfloat16, float16, float32 or float64.",
        rich_help_panel=options.ENGINE_PANEL,
    ),
]
MaxNumSeqsOption = Annotated[
    int,
    typer.Option(
        metavar="N", help="Most rows that run at once.", rich_help_panel=options.ENGINE_PANEL
    ),
]
MaxNumBatchedTokensOption = Annotated[
    int,
    typer.Option(
        metavar="N", help="Token budget of one step.", rich_help_panel=options.ENGINE_PANEL
    ),
]
BlockSizeOption = Annotated[
    int,
    typer.Option(metavar="N", help="Tokens per KV block.", rich_help_panel=options.ENGINE_PANEL),
]
KvCacheMemoryOption = Annotated[
    int | None,
    typer.Option(
        metavar="MIB",
        help="Size of the KV cache in MiB (default: from free memory).",
        rich_help_panel=options.ENGINE_PANEL,
        show_default=False,
    ),
]
GpuMemoryUtilizationOption = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Share of GPU memory to use in all.",
        rich_help_panel=options.ENGINE_PANEL,
    ),
]
PrefixCachingOption = Annotated[
    bool,
    typer.Option(
        "--prefix-caching/--no-prefix-caching",
        help="Compute shared beginnings once.",
        rich_help_panel=options.ENGINE_PANEL,
    ),
]
WindowRowsOption = Annotated[
    int,
    typer.Option(metavar="N", help="Most rows read ahead.", rich_help_panel=options.ENGINE_PANEL),
]
ProgressOption = Annotated[
    bool,
    typer.Option(
        "--progress/--no-progress",
        help="Dashboard on a terminal, plain lines elsewhere.",
        rich_help_panel=options.PROGRESS_PANEL,
    ),
]
LogIntervalOption = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Time between plain progress lines.",
        rich_help_panel=options.PROGRESS_PANEL,
    ),
]
