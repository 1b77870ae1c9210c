"""The command-line options that several commands share, each declared once."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, cast

import typer

from nanobatch.errors import ConfigError
from nanobatch.io.parameter_names import TEMPLATE_ARGUMENT_NAMES
from nanobatch.job_config import InputFormat, RowConfig

INPUT_PANEL = "Rows in"
OUTPUT_PANEL = "Rows out"
MODEL_PANEL = "Model"
SAMPLING_PANEL = "Sampling (a row's own values win)"
ENGINE_PANEL = "Engine"
PROGRESS_PANEL = "Progress"

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files of prompts: .jsonl, .ndjson, .parquet, .csv, .txt; - is JSONL on stdin.",
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
        help="Send prompts of templates, columns and text lines as they are.",
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
    Path | None,
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


def parse_input_format(text: str | None) -> InputFormat | None:
    """Return the input format named by `--input-format`.

    Raises:
        ConfigError: It is not a format that nanobatch reads.
    """
    if text is not None and text not in ("jsonl", "parquet", "csv", "text"):
        raise ConfigError(
            f"--input-format is {text!r}", hint="use one of jsonl, parquet, csv, text"
        )
    return cast(InputFormat | None, text)


def parse_row_config(
    *,
    template: str | None,
    prompt_column: str | None,
    messages_column: str | None,
    id_column: str | None,
    param_columns: str,
    system: str | None,
    raw: bool,
    strict: bool,
    allow_duplicate_ids: bool,
) -> RowConfig:
    """Return how rows become requests, as the flags say."""
    return RowConfig(
        template=template,
        prompt_column=prompt_column,
        messages_column=messages_column,
        id_column=id_column,
        param_columns=split_names(param_columns),
        system=system,
        raw=raw,
        strict=strict,
        allow_duplicate_ids=allow_duplicate_ids,
    )


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_chat_template(path: Path | None) -> str | None:
    """Return the text of a chat template file.

    Raises:
        ConfigError: The file cannot be read, or is empty.
    """
    if path is None:
        return None
    try:
        template = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {path}: {error}", hint="give a Jinja file") from error
    if not template.strip():
        raise ConfigError(f"--chat-template {path} is empty", hint="give a Jinja file")
    return template


def parse_chat_template_kwargs(text: str | None) -> Mapping[str, object]:
    """Return the variables given as a JSON object.

    Raises:
        ConfigError: The text is no JSON object, or names what rendering takes for itself.
    """
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"--chat-template-kwargs is no JSON: {error}",
            hint="example: --chat-template-kwargs '{\"enable_thinking\": false}'",
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"--chat-template-kwargs is {text}; it must be a JSON object",
            hint="example: --chat-template-kwargs '{\"enable_thinking\": false}'",
        )
    for name in value:
        if name in TEMPLATE_ARGUMENT_NAMES:
            raise ConfigError(
                f"--chat-template-kwargs has {name!r}, which no template variable can be",
                hint="use --chat-template FILE for another template"
                if name == "chat_template"
                else "leave it out",
            )
    return value
