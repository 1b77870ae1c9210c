"""The options of `nanobatch run` that say how the model is run."""

from typing import Annotated

import typer

from nanobatch.cli import options

DeviceOption = Annotated[
    str,
    typer.Option(metavar="auto|cpu|cuda", help="Device.", rich_help_panel=options.ENGINE_PANEL),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        metavar="DTYPE",
        help="auto (bfloat16 on GPUs, float32 on CPUs), bfloat16, float16, float32 or float64.",
        rich_help_panel=options.ENGINE_PANEL,
    ),
]
MaxNumSeqsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most rows that run at once (default: 256 on CPUs, 1,024 on GPUs, 2,048 where "
        "weights leave 48 GiB).",
        rich_help_panel=options.ENGINE_PANEL,
        show_default=False,
    ),
]
MaxNumBatchedTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most prompt tokens of one step (default: 8,192 on CPUs, 32,768 on GPUs).",
        rich_help_panel=options.ENGINE_PANEL,
        show_default=False,
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
SharedAttentionOption = Annotated[
    bool,
    typer.Option(
        "--shared-attention/--no-shared-attention",
        help="Read shared beginnings once for all rows of a step.",
        rich_help_panel=options.ENGINE_PANEL,
    ),
]
EnforceEagerOption = Annotated[
    bool,
    typer.Option(
        "--enforce-eager",
        help="Decode without CUDA graphs: slower, same tokens. On a CPU: compile nothing.",
        rich_help_panel=options.ENGINE_PANEL,
    ),
]
AttentionBackendOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Attention of prompts on a GPU: auto, triton, fa3, fa2 or torch.",
        rich_help_panel=options.ENGINE_PANEL,
    ),
]
WindowRowsOption = Annotated[
    int,
    typer.Option(metavar="N", help="Most rows read ahead.", rich_help_panel=options.ENGINE_PANEL),
]
WindowTokensOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Most prompt tokens read ahead.",
        rich_help_panel=options.ENGINE_PANEL,
    ),
]
LongPromptsOption = Annotated[
    str,
    typer.Option(
        metavar="POLICY",
        help="error, truncate-left or truncate-middle, for prompts that do not fit.",
        rich_help_panel=options.ENGINE_PANEL,
    ),
]
RowTimeoutOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Longest time of a row once it runs; then it is an error row.",
        rich_help_panel=options.ENGINE_PANEL,
        show_default=False,
    ),
]
