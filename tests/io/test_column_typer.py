import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobatch.io.column_typer import MAX_COLUMNS, ColumnTyper, fits_type

TEXT = pa.large_string()


def type_of(*values: object) -> pa.DataType | None:
    typer = ColumnTyper()
    for value in values:
        typer.observe({"column": value})
    schema = typer.schema()
    return schema.field("column").type if "column" in schema.names else None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, None], pa.bool_()),
        ([1, 2**53, -(2**63)], pa.int64()),
        ([0.5, None], pa.float64()),
        ([1, 2, 0.5], pa.float64()),
        ([2**53 + 1, 2**60, 0.5], pa.int64()),
        ([2**53 + 1, 0.5, 0.25], pa.float64()),
        (["a", None], TEXT),
        ([None, None], TEXT),
        ([math.nan], TEXT),
        (["a", 1, "b"], TEXT),
        ([1, "b", 2], pa.int64()),
        (["a", 1], TEXT),
        ([True, 1, 1], pa.int64()),
        ([[1, 2], [], None], pa.list_(pa.int64())),
        ([[]], pa.list_(TEXT)),
        ([[[1.5]]], pa.list_(pa.list_(pa.float64()))),
        ([{"x": 1}, {"y": "s"}], pa.struct([("x", pa.int64()), ("y", TEXT)])),
        ([[{"x": None}]], pa.list_(pa.struct([("x", TEXT)]))),
        ([{}], None),
        ([{"x": {}}], None),
        ([2**64], None),
        ([2**64, "a"], TEXT),
        ([{"x": 1, "z": {}}], pa.struct([("x", pa.int64())])),
        ([{str(key): 1 for key in range(65)}], None),
        ([[[[[[[[[[1]]]]]]]]]], None),
    ],
)
def test_a_column_has_the_type_that_holds_most_of_its_values(
    values: list[object], expected: pa.DataType | None
) -> None:
    assert type_of(*values) == expected


def test_columns_are_in_order_of_first_appearance() -> None:
    typer = ColumnTyper()
    typer.observe({"b": 1})
    typer.observe({"a": "x", "b": 2})
    assert typer.schema() == pa.schema([("b", pa.int64()), ("a", TEXT)])


def test_rows_after_the_first_10_000_change_nothing() -> None:
    typer = ColumnTyper()
    for row in range(10_000):
        assert not typer.is_complete
        typer.observe({"a": row})
    assert typer.is_complete
    typer.observe({"a": "x", "late": 1})
    assert typer.schema() == pa.schema([("a", pa.int64())])


def test_keys_made_of_data_do_not_each_become_a_column() -> None:
    typer = ColumnTyper()
    for row in range(3 * MAX_COLUMNS):
        typer.observe({f"user {row}": 1})
    assert len(typer.schema()) == MAX_COLUMNS


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def without_nulls(value: object) -> object:
    """Null equals absent: Arrow gives a struct's missing keys back as null."""
    if isinstance(value, dict):
        members = {key: without_nulls(member) for key, member in value.items()}
        return {key: member for key, member in members.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


@given(st.lists(json_values, min_size=1, max_size=6))
def test_what_fits_a_column_comes_back_from_it_unchanged(values: list[object]) -> None:
    data_type = type_of(*values)
    if data_type is None:
        return
    fits = fits_type(data_type)
    fitting = [value for value in values if fits(value)]
    assert without_nulls(pa.array(fitting, data_type).to_pylist()) == without_nulls(fitting)


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        (pa.int64(), 1, True),
        (pa.int64(), 1.0, False),
        (pa.int64(), True, False),
        (pa.int64(), 2**63, False),
        (pa.float64(), 2**53, True),
        (pa.float64(), 2**53 + 1, False),
        (pa.float64(), True, False),
        (pa.bool_(), 1, False),
        (TEXT, 1, False),
        (pa.list_(TEXT), "ab", False),
        (pa.list_(pa.int64()), [1, 1.5], False),
        (pa.struct([("x", pa.int64())]), {"x": 1, "y": 2}, False),
        (pa.struct([("x", pa.int64())]), {"x": 1, "y": None}, True),
        (pa.struct([("x", pa.int64())]), [], False),
        (pa.int16(), 5, True),
        (pa.int16(), 70_000, False),
        (pa.date32(), "2020-01-01", False),
        (pa.float32(), 0.1, False),
        (pa.float32(), 0.5, True),
    ],
)
def test_only_values_that_keep_their_meaning_fit(
    data_type: pa.DataType, value: object, expected: bool
) -> None:
    fits = fits_type(data_type)
    assert fits(value) is expected
    assert fits(None) is True
