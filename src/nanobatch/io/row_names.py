"""What the names of a row's columns say of it, worked out once for all rows that have them.

Knows names, and which values must be looked at before what names say can be believed: a null is
an absent column. The rows of a file have few sets of names, so this saves most of what telling
the parts of a row apart costs.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from nanobatch.io.input_row import Fields, InputRow
from nanobatch.io.parameter_names import (
    BATCH_LINE_NAMES,
    CHAT_NAMES,
    HARMLESS_NAMES,
    PROMPT_NAMES,
    is_later_name,
)
from nanobatch.io.row_params import PARAMETERS
from nanobatch.io.row_shape import ID_NAMES, RowShape, id_name, other_columns, shape_of
from nanobatch.io.shared_columns import SharedColumns
from nanobatch.job_config import RowConfig

MAX_REMEMBERED = 256
"""Sets of names that are remembered: a file may have new names in every row."""
MAX_REMEMBERED_CHARACTERS = 4096
"""Longest set of names that is remembered: names may be as long as a line."""

BODY_NAMES = PROMPT_NAMES | CHAT_NAMES | HARMLESS_NAMES

_Key = tuple[str, ...]
_Names = TypeVar("_Names")


class BodyNames(NamedTuple):
    """What the names of a body, or of a flat row, say.

    Attributes:
        prompt: Which name holds the prompt: `prompt`, `messages` or `input_ids`.
        parameters: Names of sampling parameters.
        has_extras: Whether there are names of `CHAT_NAMES`.
        is_prompt_only: Whether there is a `prompt`, and none of the others.
    """

    prompt: str
    parameters: tuple[str, ...]
    has_extras: bool
    is_prompt_only: bool


class RowNames(NamedTuple):
    """What the names of a row say.

    Attributes:
        shape: The row's shape.
        id: Which name holds the row's id.
        passthrough: Names of the columns that pass through.
        settled_by: Names whose values must not be null for this to be so.
        has_body: Whether the shape is so only if `body` is an object.
        flat_body: What the names of a flat row say as those of a body, if it is one and they do.
    """

    shape: RowShape
    id: str | None
    passthrough: tuple[str, ...]
    settled_by: tuple[str, ...]
    has_body: bool
    flat_body: BodyNames | None


class KnownRows:
    """Remembers what the names of rows say. For one thread at a time."""

    def __init__(self, row_config: RowConfig) -> None:
        self._config = row_config
        self._known: dict[_Key, RowNames] = {}
        self._last_key: _Key = ()
        self._last: RowNames | None = None

    def names(self, row: InputRow, fields: Fields) -> RowNames | None:
        """Return what the names of a row say, or None where its values decide."""
        if row.source.format == "text":
            return None
        key = tuple(fields)
        found = self._last
        if found is None or key != self._last_key:
            found = self._known.get(key) or self._look_at(row, key)
            # Rows that were decoded together share their names: the next is compared in no time.
            self._last_key, self._last = key, found
        for name in found.settled_by:
            if fields[name] is None:
                return None
        if found.has_body and type(fields["body"]) is not dict:
            return None
        return found

    def names_of_all(self, shared: SharedColumns) -> RowNames | None:
        """Return what the names of rows say of all of them, or None where values decide."""
        row, key = shared.rows[0], shared.columns.names
        if row.source.format == "text":
            return None
        found = self._known.get(key) or self._look_at(row, key)
        is_settled = all(None not in shared.values(name) for name in found.settled_by)
        return found if is_settled and not found.has_body else None

    def _look_at(self, row: InputRow, key: _Key) -> RowNames:
        is_table = self._config.is_table
        sample: Fields = dict.fromkeys(key, "")
        has_body = not is_table and "body" in sample
        if has_body:
            sample["body"] = {}
        shape = shape_of(row, sample, is_table=is_table)
        decisive = {*ID_NAMES, self._config.id_column}
        if has_body:
            decisive |= BATCH_LINE_NAMES | PROMPT_NAMES
        names = RowNames(
            shape=shape,
            id=id_name(sample, shape, self._config),
            passthrough=tuple(other_columns(sample, shape, self._config)),
            settled_by=tuple(name for name in key if name in decisive),
            has_body=has_body,
            flat_body=_body_names(sample, in_body=False) if shape is RowShape.FLAT else None,
        )
        _remember(self._known, key, names)
        return names


class KnownBodies:
    """Remembers what the names of bodies say. For one thread at a time."""

    def __init__(self) -> None:
        self._known_bodies: dict[_Key, BodyNames | None] = {}
        self._known_flat: dict[_Key, BodyNames | None] = {}

    def names(self, values: Mapping[str, object], *, in_body: bool) -> BodyNames | None:
        """Return what the names of a body say, or None where its values must be looked at.

        They must be, too, where the prompt is null.

        Args:
            values: The body's members; a flat row's columns.
            in_body: Whether unknown names are parameters and not columns.
        """
        known = self._known_bodies if in_body else self._known_flat
        key = tuple(values)
        try:
            found = known[key]
        except KeyError:
            found = _body_names(values, in_body=in_body)
            _remember(known, key, found)
        return found


def _remember(known: dict[_Key, _Names], key: _Key, names: _Names) -> None:
    if sum(map(len, key)) > MAX_REMEMBERED_CHARACTERS:
        return
    if len(known) >= MAX_REMEMBERED:
        known.clear()
    known[key] = names


def _body_names(values: Mapping[str, object], *, in_body: bool) -> BodyNames | None:
    prompts = [name for name in values if name in PROMPT_NAMES]
    others = [name for name in values if name not in PARAMETERS and name not in BODY_NAMES]
    has_doubtful = any(in_body or is_later_name(name, in_body=False) for name in others)
    if len(prompts) != 1 or has_doubtful:
        return None
    parameters = tuple(name for name in values if name in PARAMETERS)
    has_extras = not CHAT_NAMES.isdisjoint(values)
    return BodyNames(
        prompt=prompts[0],
        parameters=parameters,
        has_extras=has_extras,
        is_prompt_only=prompts == ["prompt"] and not parameters and not has_extras,
    )
