"""Texts of options to the values that they stand for.

Knows the syntax of one option at a time; which options exclude each other is in `build_config`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast, get_args

from nanobatch.config import LongPrompts
from nanobatch.errors import ConfigError
from nanobatch.io.json_text import JsonError, decode_json
from nanobatch.io.parameter_names import TEMPLATE_ARGUMENT_NAMES
from nanobatch.job_config import InputFormat, RowConfig


def one_of(flag: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return the value of an option that takes some words only.

    Raises:
        ConfigError: It is none of them.
    """
    if value not in allowed:
        raise ConfigError(f"{flag} is {value!r}", hint=f"use one of {', '.join(allowed)}")
    return value


def parse_input_format(text: str | None) -> InputFormat | None:
    """Return the input format named by `--input-format`.

    Raises:
        ConfigError: It is not a format that nanobatch reads.
    """
    if text is None:
        return None
    return cast(InputFormat, one_of("--input-format", text, get_args(InputFormat)))


def parse_delimiter(text: str) -> str:
    r"""Return the field separator of CSV: `\t`, two characters in a shell's quotes, is a tab."""
    return "\t" if text == r"\t" else text


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


def parse_columns(text: str) -> tuple[str, ...] | None:
    """Return the columns that `--columns` names; None is all."""
    if text == "all":
        return None
    return () if text == "none" else split_names(text)


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_chat_template(path: str | None) -> str | None:
    """Return the text of a chat template file.

    Raises:
        ConfigError: The file cannot be read, or is empty.
    """
    if path is None:
        return None
    try:
        template = Path(path).read_text(encoding="utf-8")
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
        value, flaws, _ = decode_json(text)
    except JsonError as error:
        raise ConfigError(
            f"--chat-template-kwargs is {error}",
            hint="example: --chat-template-kwargs '{\"enable_thinking\": false}'",
        ) from error
    for name, reason in flaws.items():
        raise ConfigError(
            f"--chat-template-kwargs: {name} {reason}", hint="give another value, or leave it out"
        )
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


def parse_long_prompts(text: str) -> LongPrompts:
    """Return what becomes of prompts that do not fit, as `--long-prompts` names it.

    Raises:
        ConfigError: It is no policy.
    """
    return cast(LongPrompts, one_of("--long-prompts", text, get_args(LongPrompts)))


def parse_max_errors(text: str) -> int | None:
    """Return how many error rows are allowed; None is any number.

    Raises:
        ConfigError: It is no number.
    """
    if text == "any":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"--max-errors is {text!r}", hint="give a number or `any`")
    return int(text)
