"""Options from a file and from the environment: flag > environment > file > default.

`--config FILE.toml` holds options by their long names, with `-` or `_`, at the top level. So does
the environment as `NANOBATCH_<OPTION>`. Both know the options of `run` and `validate`, and each
command takes those that it has. Relative paths mean what they mean on the command line.
"""

import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from nanobatch.cli.option_table import Option, WrongTypeError, options_of
from nanobatch.errors import ConfigError

PREFIX = "NANOBATCH_"
CONFIGURABLE_COMMANDS = ("run", "validate")

# A variable this close to an option is a misspelt one; others may be meant for somebody else.
_MISSPELT = 0.85
_META_KEY = "nanobatch.settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What applies to a command beside its flags.

    Attributes:
        path: The configuration file, or None.
        values: Values by parameter name.
        variables: The environment variables among them, by parameter name.
        ignored: Variables that are no option, in order of their names.
    """

    path: str | None
    values: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def apply_settings(context: typer.Context, path: str | None) -> str | None:
    """Make what file and environment say the command's defaults; a callback of `--config`.

    Raises:
        ConfigError: The file cannot be read, or a name or a value in it or in the environment is
            wrong.
    """
    assert context.parent is not None, "commands belong to the program"
    commands: Mapping[str, Any] = context.parent.command.commands  # type: ignore[attr-defined]
    options = options_of(commands[name] for name in CONFIGURABLE_COMMANDS)
    settings = read_settings(path, os.environ, options)
    context.default_map = dict(settings.values)
    context.meta[_META_KEY] = settings
    return path


def announce_settings(context: typer.Context) -> None:
    """Say on standard error where options came from that the command line does not show."""
    settings: Settings = context.meta[_META_KEY]
    parts = [settings.path] if settings.path is not None else []
    used = [
        variable
        for parameter, variable in settings.variables.items()
        if _is_default(context, parameter)
    ]
    if used:
        parts.append(f"{', '.join(used)} from the environment")
    if settings.ignored:
        is_are = "is no option" if len(settings.ignored) == 1 else "are no options"
        parts.append(f"{', '.join(settings.ignored)} {is_are}")
    if parts:
        sys.stderr.write(f"config: {'; '.join(parts)}\n")


def _is_default(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "DEFAULT_MAP"


def read_settings(
    path: str | None, environ: Mapping[str, str], options: Mapping[str, Option]
) -> Settings:
    """Return what file and environment say.

    Args:
        path: The configuration file, or None.
        environ: Environment variables; an empty one counts as not set.
        options: Options by their long names, written with `_`.

    Raises:
        ConfigError: See `apply_settings`.
    """
    values = {} if path is None else _read_file(path, options)
    variables: dict[str, str] = {}
    ignored = []
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or not environ[variable] or name == "config":
            continue
        option = options.get(name)
        if option is None:
            _require_not_misspelt(variable, name, options)
            ignored.append(variable)
            continue
        if option.parameter in variables:
            raise _said_twice(variables[option.parameter], variable, "the environment")
        variables[option.parameter] = variable
        values[option.parameter] = _value_of_variable(option, variable, environ[variable])
    return Settings(path=path, values=values, variables=variables, ignored=tuple(ignored))


def _require_not_misspelt(variable: str, name: str, options: Mapping[str, Option]) -> None:
    closest = get_close_matches(name, [*options, "config"], n=1, cutoff=_MISSPELT)
    if closest:
        raise ConfigError(
            f"the environment has {variable}, which is no option",
            hint=f"did you mean {PREFIX}{closest[0].upper()}?",
        )


def _value_of_variable(option: Option, variable: str, text: str) -> object:
    try:
        return option.from_text(text)
    except WrongTypeError as wanted:
        raise ConfigError(
            f"{variable} is {text!r}; it must be {wanted}",
            hint="the variable is in the environment",
        ) from wanted


def _read_file(path: str, options: Mapping[str, Option]) -> dict[str, object]:
    values: dict[str, object] = {}
    keys: dict[str, str] = {}
    for key, value in _parse_file(path).items():
        option = options.get(key.replace("-", "_"))
        if option is None:
            raise _unknown_key(path, key, value, options)
        if option.parameter in keys:
            raise _said_twice(keys[option.parameter], key, path)
        keys[option.parameter] = key
        try:
            values[option.parameter] = option.from_toml(value)
        except WrongTypeError as wanted:
            raise ConfigError(
                f"{path}: {key} is {value!r}; it must be {wanted}", hint="change it in the file"
            ) from wanted
    return values


def _parse_file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ConfigError(f"--config {path}: {reason}", hint="give a TOML file") from error
    except ValueError as error:  # of TOML or of UTF-8
        raise ConfigError(
            f"--config {path} is no TOML: {error}", hint="write lines such as max-tokens = 256"
        ) from error


def _unknown_key(path: str, key: str, value: object, options: Mapping[str, Option]) -> ConfigError:
    closest = get_close_matches(key.replace("-", "_"), options, n=1)
    if closest:
        hint = f"did you mean {closest[0].replace('_', '-')}?"
    elif isinstance(value, dict):
        hint = "options stand at the top level, without tables"
    else:
        hint = "see `nanobatch run --help` for the options"
    return ConfigError(f"{path}: {key} is no option", hint=hint)


def _said_twice(first: str, second: str, where: str) -> ConfigError:
    return ConfigError(f"{where}: {first} and {second} say the same option", hint="keep one")
