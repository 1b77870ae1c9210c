"""A job's prompt template: Jinja text rendered with a row's columns.

Knows Jinja and its sandbox; not where columns come from. Inputs are untrusted, the template is
not: the sandbox keeps a column from reaching what a template would not.
"""

import json
from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nanobatch.errors import ConfigError
from nanobatch.io.json_text import replace_surrogates
from nanobatch.io.row_fault import RowFault
from nanobatch.request import ErrorCode

WHOLE_ROW = "row"
"""Variable that holds all columns, for names that are no identifiers: {{ row["my column"] }}."""

MESSAGE_CHARACTERS = 200


class PromptTemplate:
    """A compiled template. A null column renders as empty text, an undefined name is an error.

    One line end at the end of the template is not part of the prompt, as editors put it there.

    Attributes:
        variables: Names that the template takes from the row.
    """

    def __init__(self, text: str) -> None:
        """Compile a template.

        Raises:
            ConfigError: The text is empty or not a valid template.
        """
        if not text.strip():
            raise ConfigError(
                "the prompt template is empty", hint="such as 'Summarise: {{ text }}'"
            )
        environment = _environment()
        try:
            self._template = environment.from_string(text)
            self.variables = frozenset(
                jinja2.meta.find_undeclared_variables(environment.parse(text))
            )
        except (jinja2.TemplateError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"the prompt template is not valid: {_one_line(error)}",
                hint="it is Jinja text, such as 'Summarise: {{ text }}'",
            ) from None

    def render(self, columns: Mapping[str, object]) -> str:
        """Return the prompt of a row.

        Raises:
            RowFault: `template_error`: a name is undefined or an expression failed.
        """
        variables = {name: _with_null_texts(value) for name, value in columns.items()}
        variables.setdefault(WHOLE_ROW, dict(variables))
        try:
            text = self._template.render(variables)
        # Whatever an expression raises (a TypeError, a ZeroDivisionError) is this row's fault.
        except Exception as error:
            raise RowFault(
                ErrorCode.TEMPLATE_ERROR, f"template: {type(error).__name__}: {_one_line(error)}"
            ) from None
        return replace_surrogates(text)[0]


class _NullText(str):
    """A null of the row: empty text also behind a filter, where None would become "None"."""

    __slots__ = ()


_NULL_TEXT = _NullText()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, finalize=_finalize, autoescape=False
    )
    # A prompt is a function of its row: nothing random, or a resumed job would differ.
    del environment.globals["lipsum"]
    del environment.filters["random"]
    environment.tests["none"] = _is_null
    environment.policies["json.dumps_function"] = _dump_json
    return environment


def _with_null_texts(value: object) -> object:
    """Return a value with `_NULL_TEXT` for every null, at every depth."""
    if value is None:
        return _NULL_TEXT
    if isinstance(value, dict):
        return {key: _with_null_texts(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_with_null_texts(item) for item in value])
    return value


def _with_nulls(value: object) -> object:
    """Return what `_with_null_texts` was given."""
    if isinstance(value, _NullText):
        return None
    if isinstance(value, dict):
        return {key: _with_nulls(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(item) for item in value]
    return value


def _dump_json(value: object, **options: Any) -> str:
    """Write a value as the filter `tojson` does, nulls as JSON has them."""
    return json.dumps(_with_nulls(value), **options)


def _finalize(value: Any) -> Any:
    return "" if value is None else value


def _is_null(value: object) -> bool:
    return value is None or isinstance(value, _NullText)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:MESSAGE_CHARACTERS]
