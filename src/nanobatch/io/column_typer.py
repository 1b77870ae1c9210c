"""Types for pass-through columns whose input declares none: JSONL, by its first rows.

Knows JSON values and the Arrow types that hold them exactly; not what becomes of values that do
not fit (`nanobatch.io.columns` puts them into `extra`). Types are chosen by majority, at every
level of nesting: a column that holds 9,990 numbers and ten words is a column of numbers.
"""

import math
from collections.abc import Callable, Mapping

import pyarrow as pa

MAX_TYPED_ROWS = 10_000
MAX_COLUMNS = 1_000
"""Columns that get a type; rows with keys made of data must not make a column of each."""
MAX_STRUCT_FIELDS = 64
MAX_DEPTH = 8

Fits = Callable[[object], bool]

_MAX_EXACT_INT = 1 << 53
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1


class ColumnTyper:
    """Infers one type per pass-through column from the first 10,000 rows.

    Booleans, integers, floats, strings, lists and objects become bool, int64, double,
    large_string, list and struct. Integers beside floats make a double; integers that a double
    would change count as another type. A column with nulls only is large_string. A column without
    any usable type (empty objects, integers beyond 64 bits, objects of more than 64 keys, nesting
    deeper than 8) is left out of the schema: its values go to `extra`.
    """

    def __init__(self) -> None:
        self._columns: dict[str, _Votes] = {}
        self._num_rows = 0

    @property
    def is_complete(self) -> bool:
        """Whether further rows are ignored."""
        return self._num_rows >= MAX_TYPED_ROWS

    def observe(self, passthrough: Mapping[str, object]) -> None:
        """Take the pass-through values of the next row into account."""
        if self.is_complete:
            return
        self._num_rows += 1
        for name, value in passthrough.items():
            votes = self._columns.get(name)
            if votes is None:
                if len(self._columns) >= MAX_COLUMNS:
                    continue
                votes = self._columns[name] = _Votes()
            votes.add(value, 0)

    def schema(self) -> pa.Schema:
        """Return the columns in order of first appearance, with their types."""
        typed = ((name, votes.winner()) for name, votes in self._columns.items())
        return pa.schema([(name, kind) for name, kind in typed if kind is not None])


class _Votes:
    """Counts what kinds of values stood in one place of the rows."""

    __slots__ = ("counts", "fields", "item")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.fields: dict[str, _Votes] = {}
        self.item: _Votes | None = None

    def add(self, value: object, depth: int) -> None:
        """Count a value and what it contains."""
        kind = _kind(value) if depth <= MAX_DEPTH else "untypable"
        if kind is None:
            return
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind == "list" and isinstance(value, list):
            self.item = self.item or _Votes()
            for item in value:
                self.item.add(item, depth + 1)
        elif kind == "struct" and isinstance(value, dict):
            for name, member in value.items():
                if len(self.fields) <= MAX_STRUCT_FIELDS:
                    self.fields.setdefault(name, _Votes()).add(member, depth + 1)

    def winner(self) -> pa.DataType | None:
        """Return the type that holds most of the values, or None if no type holds any."""
        if not self.counts:
            return pa.large_string()
        counts = dict(self.counts)
        if counts.get("float", 0) > counts.get("wide_int", 0):
            counts["float"] += counts.pop("int", 0)
        elif "wide_int" in counts:
            counts["int"] = counts.pop("wide_int") + counts.get("int", 0)
        for kind in sorted(counts, key=counts.__getitem__, reverse=True):
            data_type = self._data_type(kind)
            if data_type is not None:
                return data_type
        return None

    def _data_type(self, kind: str) -> pa.DataType | None:
        if kind == "list":
            item = self.item.winner() if self.item else None
            return None if item is None else pa.list_(item)
        if kind == "struct":
            if len(self.fields) > MAX_STRUCT_FIELDS:
                return None
            typed = [(name, votes.winner()) for name, votes in self.fields.items()]
            fields = [(name, data_type) for name, data_type in typed if data_type is not None]
            return pa.struct(fields) if fields else None
        return _SCALAR_TYPES.get(kind)


_SCALAR_TYPES = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "wide_int": pa.int64(),
    "float": pa.float64(),
    "string": pa.large_string(),
}


_KIND_OF_TYPE = {bool: "bool", float: "float", str: "string", list: "list", dict: "struct"}


def _kind(value: object) -> str | None:
    """Return what a value votes for, None for null and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if type(value) is not int:
        return _KIND_OF_TYPE.get(type(value), "untypable")
    if abs(value) <= _MAX_EXACT_INT:
        return "int"
    return "wide_int" if _MIN_INT64 <= value <= _MAX_INT64 else "untypable"


def fits_type(data_type: pa.DataType) -> Fits:
    """Return a test for whether a Python value fits a type without any change; null fits all.

    Stricter than pyarrow, which cuts 1.5 to an int64 and drops keys that a struct lacks.
    """
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return _fits_list(fits_type(data_type.value_type))
    if pa.types.is_struct(data_type):
        return _fits_struct({field.name: fits_type(field.type) for field in data_type})
    scalar = _SCALAR_FITS.get(data_type)
    return scalar if scalar is not None else _fits_as_arrow(data_type)


def _fits_list(fits_item: Fits) -> Fits:
    return lambda value: (
        value is None or (isinstance(value, list) and all(fits_item(item) for item in value))
    )


def _fits_struct(fits_field: Mapping[str, Fits]) -> Fits:
    return lambda value: (
        value is None
        or (
            isinstance(value, dict)
            and all(
                member is None or (name in fits_field and fits_field[name](member))
                for name, member in value.items()
            )
        )
    )


def _fits_as_arrow(data_type: pa.DataType) -> Fits:
    def fits(value: object) -> bool:
        try:
            return bool(pa.scalar(value, data_type).as_py() == value)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return False

    return fits


def _fits_string(value: object) -> bool:
    return value is None or isinstance(value, str)


def _fits_bool(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _fits_int64(value: object) -> bool:
    if value is None:
        return True
    return type(value) is int and _MIN_INT64 <= value <= _MAX_INT64


def _fits_double(value: object) -> bool:
    if value is None or type(value) is float:
        return True
    return type(value) is int and abs(value) <= _MAX_EXACT_INT


_SCALAR_FITS: Mapping[pa.DataType, Fits] = {
    pa.string(): _fits_string,
    pa.large_string(): _fits_string,
    pa.bool_(): _fits_bool,
    pa.int64(): _fits_int64,
    pa.float64(): _fits_double,
}
