"""The options of `nanobatch bench`.

Options of the engines have no default here: what is not given is each engine's own.
"""

from typing import Annotated

import typer

from nanobatch.cli import options

WORKLOAD_PANEL = "A workload of one's own"
FILE_PANEL = "A file of prompts"
MEASURE_PANEL = "Measuring"
RESULT_PANEL = "Results"

WorkloadsArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[WORKLOAD,...]",
        help="nano, nano4, shared_prefix, many_prefixes, three_level, short_prefixes, prefill, "
        "cpu, or a file of prompts as `nanobatch run` reads it.",
        show_default=False,
    ),
]
EngineOption = Annotated[
    list[str],
    typer.Option(
        metavar="A,B",
        help="nanobatch, nanobatch-unshared (its --no-shared-attention), vllm or transformers; "
        "several run one after the other.",
        rich_help_panel=MEASURE_PANEL,
    ),
]
RandomWeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Draw the weights of a Qwen3 of this size, 0.6b, 4b, 8b or smoke, instead of reading "
        "a model.",
        rich_help_panel=options.MODEL_PANEL,
        show_default=False,
    ),
]
SaveCheckpointOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Write the random weights there and keep them (default: a temporary folder, if an "
        "engine needs them).",
        rich_help_panel=options.MODEL_PANEL,
        show_default=False,
    ),
]
InputLenOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|LO:HI",
        help="Tokens of a prompt after its prefix (default: 512).",
        rich_help_panel=WORKLOAD_PANEL,
        show_default=False,
    ),
]
OutputLenOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|LO:HI",
        help="Tokens generated (default: 128).",
        rich_help_panel=WORKLOAD_PANEL,
        show_default=False,
    ),
]
NumPromptsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Prompts (default: 256).",
        rich_help_panel=WORKLOAD_PANEL,
        show_default=False,
    ),
]
PrefixLenOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Tokens of the beginning that prompts share (default: 0).",
        rich_help_panel=WORKLOAD_PANEL,
        show_default=False,
    ),
]
NumPrefixesOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Different beginnings, dealt out in turn (default: 1).",
        rich_help_panel=WORKLOAD_PANEL,
        show_default=False,
    ),
]
MaxTokensOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Tokens generated for rows that do not say how many.",
        rich_help_panel=FILE_PANEL,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Take the first N rows only.",
        rich_help_panel=FILE_PANEL,
        show_default=False,
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        metavar="T",
        help="0 takes the most likely token (default: the workload's, 0.6 or 0).",
        rich_help_panel=MEASURE_PANEL,
        show_default=False,
    ),
]
WarmupOption = Annotated[
    int,
    typer.Option(metavar="N", help="Runs before the measured ones.", rich_help_panel=MEASURE_PANEL),
]
RepeatsOption = Annotated[
    int,
    typer.Option(
        metavar="N", help="Measured runs; their median counts.", rich_help_panel=MEASURE_PANEL
    ),
]
HfBatchSizeOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Prompts that transformers generates for at once.",
        rich_help_panel=MEASURE_PANEL,
    ),
]
VllmArgOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=JSON",
        help="Argument of vLLM's LLM, such as max_num_seqs=1024; may be given several times.",
        rich_help_panel=MEASURE_PANEL,
        show_default=False,
    ),
]
MaxNumSeqsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most rows that run at once (default: the engine's).",
        rich_help_panel=options.ENGINE_PANEL,
        show_default=False,
    ),
]
MaxNumBatchedTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Token budget of one step (default: the engine's).",
        rich_help_panel=options.ENGINE_PANEL,
        show_default=False,
    ),
]
GpuMemoryUtilizationOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Share of GPU memory to use in all (default: the engine's).",
        rich_help_panel=options.ENGINE_PANEL,
        show_default=False,
    ),
]
PrefixCachingOption = Annotated[
    bool | None,
    typer.Option(
        "--prefix-caching/--no-prefix-caching",
        help="Compute shared beginnings once (default: the engine's).",
        rich_help_panel=options.ENGINE_PANEL,
        show_default=False,
    ),
]
SharedAttentionOption = Annotated[
    bool | None,
    typer.Option(
        "--shared-attention/--no-shared-attention",
        help="nanobatch reads shared beginnings once for all rows of a step (default: yes).",
        rich_help_panel=options.ENGINE_PANEL,
        show_default=False,
    ),
]
EnforceEagerOption = Annotated[
    bool,
    typer.Option(
        "--enforce-eager",
        help="Run without CUDA graphs, on a CPU without compiled functions.",
        rich_help_panel=options.ENGINE_PANEL,
    ),
]
AttentionBackendOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="nanobatch's kernels for the attention of prompts (default: the fastest).",
        rich_help_panel=options.ENGINE_PANEL,
        show_default=False,
    ),
]
JsonOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Append the JSON lines to a file, too.",
        rich_help_panel=RESULT_PANEL,
        show_default=False,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Profile one more run: a trace there, GPU idle time and the longest kernels here "
        "(vLLM then runs in one process, which makes it slower).",
        rich_help_panel=RESULT_PANEL,
        show_default=False,
    ),
]
ProfileSecondsOption = Annotated[
    float,
    typer.Option(
        metavar="S",
        help="Length of the profiled window in the middle of that run.",
        rich_help_panel=RESULT_PANEL,
    ),
]
PlotOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Draw tokens per second over time and the engines side by side (.svg or .png).",
        rich_help_panel=RESULT_PANEL,
        show_default=False,
    ),
]
DebugOption = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show tracebacks and all that the engines print.",
        rich_help_panel=RESULT_PANEL,
    ),
]
