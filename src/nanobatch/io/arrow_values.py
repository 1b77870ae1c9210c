"""Arrow columns as Python values that lose nothing.

Knows Arrow types; not files or rows. Python's own times end at microseconds and its calendar at
the year 9999: what it cannot hold becomes text. pandas, which Arrow would use for nanoseconds
where it is installed, has no say: a row's hash must not depend on that.
"""

from collections.abc import Callable

import pyarrow as pa

from nanobatch.io.duration_text import duration_text

_NOT_COPIED = ("string_view", "binary_view", "dictionary<")
_NANOSECONDS_PER_UNIT = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def python_values(column: pa.Array) -> list[object]:
    """Return a column's values; one that is no UTF-8 is represented by its decoding error.

    Durations are ISO 8601 text, times of nanoseconds text as Arrow writes them.
    """
    kind = column.type
    has_durations = "duration[" in str(kind)
    has_nanoseconds = "[ns" in str(kind)
    if (has_durations or has_nanoseconds) and _is_list_view(kind):
        # Arrow casts no list view to another, and to a list it loses what comes after a null.
        return [python_values(view.values) if view.is_valid else None for view in column]
    if has_durations or has_nanoseconds:
        column = column.cast(_readable_type(kind))
    try:
        values = list(column.to_pylist())
    except (ValueError, OverflowError):
        values = [_value_or_error(scalar) for scalar in column]
    return [_with_duration_text(value, kind) for value in values] if has_durations else values


def copyable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which rows of a column can be copied, which is nearly always its own.

    Arrow takes no rows out of string views, at any depth, and nulls of a struct spoil what
    dictionaries are in it. Parquet knows neither: both are plain strings there.
    """
    if pa.types.is_dictionary(kind) or not any(name in str(kind) for name in _NOT_COPIED):
        return kind
    return _rebuilt(kind, _copyable_leaf)


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _value_or_error(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error
    except (ValueError, OverflowError):  # a date that Python's calendar does not reach
        return scalar.cast(pa.string()).as_py()


def _readable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with durations as their counts, and nanoseconds else as text."""
    return _rebuilt(kind, _readable_leaf)


def _readable_leaf(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_duration(kind):
        return pa.int64()
    is_time = pa.types.is_timestamp(kind) or pa.types.is_time64(kind)
    return pa.string() if is_time and kind.unit == "ns" else kind


def _copyable_leaf(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def _rebuilt(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with what it holds, at any depth, replaced by what `leaf` makes of it."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _rebuilt(field.type, leaf)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_rebuilt(kind.key_type, leaf), _rebuilt(kind.item_type, leaf))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_rebuilt(kind.value_type, leaf), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        list_of = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return list_of(_rebuilt(kind.value_type, leaf))
    return leaf(kind)


def _with_duration_text(value: object, kind: pa.DataType) -> object:
    """Return a value of `_readable_type(kind)` with counts as durations of `kind`."""
    if isinstance(value, int) and pa.types.is_duration(kind):
        return duration_text(value * _NANOSECONDS_PER_UNIT[kind.unit])
    if isinstance(value, dict):
        return {field.name: _with_duration_text(value[field.name], field.type) for field in kind}
    if isinstance(value, list) and pa.types.is_map(kind):
        return [
            (_with_duration_text(key, kind.key_type), _with_duration_text(item, kind.item_type))
            for key, item in value
        ]
    if isinstance(value, list):
        return [_with_duration_text(item, kind.value_type) for item in value]
    return value
