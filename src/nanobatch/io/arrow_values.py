"""Arrow columns as Python values that lose nothing.

Knows Arrow types; not files or rows. Python's own times end at microseconds and its calendar at
the year 9999: what it cannot hold becomes text. pandas, which Arrow would use for nanoseconds
where it is installed, has no say: a row's hash must not depend on that.
"""

import pyarrow as pa

from nanobatch.io.duration_text import duration_text

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
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _readable_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_readable_type(kind.key_type), _readable_type(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_readable_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        list_of = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return list_of(_readable_type(kind.value_type))
    if pa.types.is_duration(kind):
        return pa.int64()
    is_time = pa.types.is_timestamp(kind) or pa.types.is_time64(kind)
    return pa.string() if is_time and kind.unit == "ns" else kind


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
