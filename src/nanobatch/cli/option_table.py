"""What each option takes when it does not come from the command line: TOML values and variables.

Reads the options off the commands themselves, so that a new flag can stand in a file at once.
Everything becomes what the flag would have been given: bounds are checked where flags' are.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class WrongTypeError(Exception):
    """A value is not of the type that an option takes; the text says which that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueKind:
    """What a kind of option takes.

    Attributes:
        description: What it is, with an article.
        toml_types: Types that a TOML value may have.
        from_toml: Turns such a value into what the flag takes.
        from_text: Turns a variable's text into it; a ValueError or KeyError says that it is none.
    """

    description: str
    toml_types: tuple[type, ...]
    from_toml: Callable[[Any], object] = field(default=lambda value: value)
    from_text: Callable[[str], object] = field(default=lambda text: text)


def _texts_of(text: str) -> list[str]:
    """Return the strings of a JSON array; any other text is one string as it stands."""
    try:
        value = json.loads(text)
    except ValueError:
        return [text]
    is_list = isinstance(value, list) and all(isinstance(element, str) for element in value)
    return value if is_list else [text]


_TEXTS = ValueKind(
    description="a string or an array of strings",
    toml_types=(str, list),
    from_toml=lambda value: [value] if isinstance(value, str) else value,
    from_text=_texts_of,
)
_BY_TYPE: Mapping[type, ValueKind] = {
    str: ValueKind(description="a string", toml_types=(str,)),
    bool: ValueKind(
        description="true or false",
        toml_types=(bool,),
        from_text=lambda text: _SWITCHES[text.lower()],
    ),
    int: ValueKind(description="an integer", toml_types=(int,), from_text=int),
    float: ValueKind(description="a number", toml_types=(int, float), from_text=float),
}
_NAMES = ValueKind(
    description="a string or an array of strings",
    toml_types=(str, list),
    from_toml=lambda value: value if isinstance(value, str) else ",".join(value),
)
# What a flag's text stands for is known by its metavar.
_BY_METAVAR = {
    "A,B": _NAMES,
    "A,B|all|none": _NAMES,
    "DURATION": ValueKind(
        description="a number of seconds or a string such as '7h30m'",
        toml_types=(int, float, str),
        from_toml=str,
    ),
    "N|any": ValueKind(description="an integer or 'any'", toml_types=(int, str), from_toml=str),
    "JSON": ValueKind(
        description="a table or a string of JSON",
        toml_types=(dict, str),
        from_toml=lambda value: value if isinstance(value, str) else json.dumps(value, default=str),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command.

    Attributes:
        parameter: Name of the command's parameter.
        kind: What it takes.
        is_negation: The option switches the parameter off, as `--no-progress` does.
    """

    parameter: str
    kind: ValueKind
    is_negation: bool = False

    def from_toml(self, value: object) -> object:
        """Return what the parameter is given for a TOML value.

        Raises:
            WrongTypeError: The value has another type.
        """
        is_wanted = isinstance(value, self.kind.toml_types)
        if isinstance(value, bool) and bool not in self.kind.toml_types:
            is_wanted = False
        if isinstance(value, list) and not all(isinstance(element, str) for element in value):
            is_wanted = False
        if not is_wanted:
            raise WrongTypeError(self.kind.description)
        return self._given(self.kind.from_toml(value))

    def from_text(self, text: str) -> object:
        """Return what the parameter is given for the text of an environment variable.

        Raises:
            WrongTypeError: The text does not stand for such a value.
        """
        try:
            return self._given(self.kind.from_text(text))
        except (ValueError, KeyError) as error:
            raise WrongTypeError(self.kind.description) from error

    def _given(self, value: object) -> object:
        return not value if self.is_negation else value


def options_of(commands: Iterable[Any]) -> dict[str, Option]:
    """Return the options of commands by their long names, written with `_`.

    Args:
        commands: As typer makes them; which library their classes are from differs by version.
    """
    options = {}
    for command in commands:
        types = get_type_hints(inspect.unwrap(command.callback))
        for parameter in command.params:
            if parameter.name not in types:  # typer's own --help
                continue
            kind = _kind_of(types[parameter.name], parameter.metavar)
            for name in _long_names(parameter.opts):
                options[name] = Option(parameter=parameter.name, kind=kind)
            for name in _long_names(parameter.secondary_opts):
                options[name] = Option(parameter=parameter.name, kind=kind, is_negation=True)
    options.pop("config", None)  # a file cannot name another
    return options


def _long_names(flags: Iterable[str]) -> list[str]:
    """Return names of flags without their dashes; an argument's name has none."""
    return [flag.lstrip("-").replace("-", "_") for flag in flags if not _is_short(flag)]


def _is_short(flag: str) -> bool:
    return flag.startswith("-") and not flag.startswith("--")


def _kind_of(annotation: Any, metavar: str | None) -> ValueKind:
    """Return the kind of an option by its type, such as `int | None`, and its syntax."""
    types = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    wanted = next(wanted for wanted in types if wanted is not NoneType)
    if get_origin(wanted) is list:
        return _TEXTS
    return _BY_METAVAR.get(metavar or "") or _BY_TYPE[wanted]
