"""The command-line options that several commands share, each declared once."""

from typing import Annotated

import typer

from nanobatch.cli.settings import apply_settings

INPUT_PANEL = "Rows in"
OUTPUT_PANEL = "Rows out"
MODEL_PANEL = "Model"
SAMPLING_PANEL = "Sampling (a row's own values win)"
ENGINE_PANEL = "Engine"
START_OVER_PANEL = "What is there already"
STOP_PANEL = "Stopping early"
PROGRESS_PANEL = "Progress"

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files (.jsonl, .ndjson, .parquet, .csv, .txt, also .gz, .zst), folders, quoted globs "
        "or URLs; - is JSONL on stdin.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="Folder, Hugging Face id or .gguf file. Without it the embedded demo model answers.",
        rich_help_panel=MODEL_PANEL,
        show_default=False,
    ),
]
InputFormatOption = Annotated[
    str | None,
    typer.Option(
        "--input-format",
        metavar="FORMAT",
        help="jsonl, parquet, csv or text, instead of going by suffix.",
        rich_help_panel=INPUT_PANEL,
        show_default=False,
    ),
]
DelimiterOption = Annotated[
    str,
    typer.Option(metavar="CHAR", help="Field separator of CSV.", rich_help_panel=INPUT_PANEL),
]
TemplateOption = Annotated[
    str | None,
    typer.Option(
        metavar="JINJA",
        help="Prompt built from a row's columns: 'Summarise: {{ text }}'.",
        rich_help_panel=INPUT_PANEL,
        show_default=False,
    ),
]
PromptColumnOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column that holds the prompt.",
        rich_help_panel=INPUT_PANEL,
        show_default=False,
    ),
]
MessagesColumnOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column that holds chat messages.",
        rich_help_panel=INPUT_PANEL,
        show_default=False,
    ),
]
IdColumnOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column that holds the id.",
        rich_help_panel=INPUT_PANEL,
        show_default=False,
    ),
]
ParamColumnsOption = Annotated[
    str,
    typer.Option(
        metavar="A,B",
        help="Columns of a table that are sampling parameters.",
        rich_help_panel=INPUT_PANEL,
        show_default=False,
    ),
]
SystemOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="System turn for prompts that become a user turn.",
        rich_help_panel=INPUT_PANEL,
        show_default=False,
    ),
]
RawOption = Annotated[
    bool,
    typer.Option(
        "--raw",
        help="Send prompts of templates, columns and text lines without the chat template.",
        rich_help_panel=INPUT_PANEL,
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="An unknown parameter in a batch line is an error.",
        rich_help_panel=INPUT_PANEL,
    ),
]
AllowDuplicateIdsOption = Annotated[
    bool,
    typer.Option(
        "--allow-duplicate-ids",
        help="Accept a custom_id that was used before.",
        rich_help_panel=INPUT_PANEL,
    ),
]
ChatTemplateOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Jinja file that replaces the model's chat template.",
        rich_help_panel=MODEL_PANEL,
        show_default=False,
    ),
]
ChatTemplateKwargsOption = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="Variables for the chat template: '{\"enable_thinking\": false}'.",
        rich_help_panel=MODEL_PANEL,
        show_default=False,
    ),
]
TrustRemoteCodeOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run code that ships with the model's tokenizer.",
        rich_help_panel=MODEL_PANEL,
    ),
]
MaxModelLenOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Longest prompt plus answer in tokens (default: the model's context).",
        rich_help_panel=MODEL_PANEL,
        show_default=False,
    ),
]
DebugOption = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show tracebacks, log every finished row.",
        rich_help_panel=PROGRESS_PANEL,
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file of options; flags and NANOBATCH_<OPTION> variables win over it.",
        envvar="NANOBATCH_CONFIG",
        show_envvar=False,
        is_eager=True,
        callback=apply_settings,
        show_default=False,
    ),
]
