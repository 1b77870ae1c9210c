"""Rows in a row that have the same names, as columns: what their names say is true of all of them.

Knows rows that are decoded; not what names mean. Rows of Parquet lie in columns as they are; those
of other formats are put together.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nanobatch.io.input_row import NO_FLAWS, Columns, Fields, InputRow
from nanobatch.request import RowError

MIN_ROWS = 8
"""Fewer rows than these are not worth being put together."""


class SharedColumns(NamedTuple):
    """Rows that have the same names, and no flaws.

    Attributes:
        rows: The rows, from one source.
        columns: The columns in which they lie.
        place: Where the first of them lies; the others follow.
    """

    rows: Sequence[InputRow]
    columns: Columns
    place: int

    def values(self, name: str) -> list[object]:
        """Return the rows' values in a column."""
        return self.columns.column(name)[self.place : self.place + len(self.rows)]

    def texts(self, name: str | None) -> list[str] | None:
        """Return the rows' values in a column; None without a name, or if one is no string."""
        if name is None:
            return None
        values = self.values(name)
        texts = [value for value in values if type(value) is str]
        return texts if len(texts) == len(values) else None

    def parts(self, names: Sequence[str]) -> list[Fields]:
        """Return of each row what it has under some names."""
        if not names:
            return [{} for _ in self.rows]
        columns = zip(*map(self.values, names), strict=True)
        return [dict(zip(names, values, strict=True)) for values in columns]


def shared_columns(rows: Sequence[InputRow]) -> SharedColumns | None:
    """Return the first rows, as many as have the same names, as columns; None if they are few."""
    lying = rows[0].columns
    if lying is None:
        fields = _alike(rows)
        if len(fields) < MIN_ROWS:
            return None
        return SharedColumns(rows[: len(fields)], _FieldColumns(fields), 0)
    columns, place = lying
    num_rows = min(len(rows), columns.num_rows - place)
    is_unbroken = rows[num_rows - 1].columns == (columns, place + num_rows - 1)
    return SharedColumns(rows[:num_rows], columns, place) if is_unbroken else None


class _FieldColumns:
    """Columns of rows whose fields are decoded one by one."""

    def __init__(self, fields: Sequence[Fields]) -> None:
        self._fields = fields
        self.names = tuple(fields[0])
        self.num_rows = len(fields)

    def column(self, name: str) -> list[object]:
        """Return the values of a column."""
        return [fields[name] for fields in self._fields]


def _alike(rows: Sequence[InputRow]) -> list[Fields]:
    """Return the fields of the first rows, as many as are flawless and have the same names."""
    source = rows[0].source
    decoded = [row.fields() for row in rows]
    names = [tuple(fields) if type(fields) is dict else None for fields in decoded]
    is_alike = [row.flaws is NO_FLAWS and row.source is source for row in rows]
    if names[0] is None:
        return []
    if names.count(names[0]) < len(names) or False in is_alike:
        is_alike = [good and name == names[0] for good, name in zip(is_alike, names, strict=True)]
    num_alike = is_alike.index(False) if False in is_alike else len(rows)
    return [fields for fields in decoded[:num_alike] if not isinstance(fields, RowError)]
