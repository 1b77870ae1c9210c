"""Parquet rows to Parquet rows: columns are copied with their types."""

import datetime
import decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.io import row_groups, writer_parquet
from nanobatch.io.columns import output_columns
from nanobatch.io.output_row import OutputRow
from tests.io.output_strategies import answer, fault, samples
from tests.io.test_writer_parquet import TEXT, table

CATEGORY = pa.dictionary(pa.int32(), pa.string())
ARROW_VALUES = pa.table(
    {
        "i8": pa.array([1, None, -3], pa.int8()),
        "u64": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "ns": pa.array([1, None, 2**40 + 1], pa.timestamp("ns", tz="Europe/Berlin")),
        "duration": pa.array([1, None, 3], pa.duration("ns")),
        "day": pa.array([datetime.date(2026, 8, 1), None, None], pa.date32()),
        "decimal": pa.array([decimal.Decimal("1.10"), None, None], pa.decimal128(10, 2)),
        "text": pa.array(["a", None, "é"], pa.string()),
        "category": pa.array(["x", "y", None]).dictionary_encode(),
        "bytes": pa.array([b"\xff", None, b""], pa.binary()),
        "nested": pa.array(
            [{"x": [1]}, None, {"x": None}], pa.struct([("x", pa.list_(pa.int16()))])
        ),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        "half": pa.array([0.5, None, 1.0], pa.float32()),
    }
)


def arrow_rows(source: pa.Table) -> list[OutputRow]:
    batches = source.to_batches(max_chunksize=2)
    places = [(batch, place) for batch in batches for place in range(batch.num_rows)]
    return [
        OutputRow(None, (answer(row),), arrow_row=arrow_row) for row, arrow_row in enumerate(places)
    ]


def test_arrow_rows_keep_their_types_and_values(tmp_path: Path) -> None:
    columns = output_columns(ARROW_VALUES.schema, has_extra=False)
    written = table(tmp_path / "out.parquet", columns, *arrow_rows(ARROW_VALUES))
    found = written.select(ARROW_VALUES.column_names)
    assert found.schema == ARROW_VALUES.schema
    assert found.unify_dictionaries().equals(ARROW_VALUES.unify_dictionaries())


def test_arrow_rows_may_repeat_or_lack_and_mix_with_others(tmp_path: Path) -> None:
    source = pa.table({"n": pa.array([10, 11, 12], pa.int32()), "prompt": ["a", "b", "c"]})
    first, second, third = arrow_rows(source)
    plain = OutputRow(None, (answer(7),), passthrough={"n": 99, "m": 1})
    rows = [third, plain, first, first, OutputRow(None, (fault(8),)), second]
    columns = output_columns(pa.schema([("n", pa.int64()), ("absent", TEXT)]))
    written = table(tmp_path / "out.parquet", columns, *rows)
    assert written.column("n").to_pylist() == [12, 99, 10, 10, None, 11]
    assert written.column("absent").to_pylist() == [None] * 6
    assert written.column("extra").to_pylist() == [None, '{"m":1}', None, None, None, None]
    assert written.column("row_index").to_pylist() == [2, 7, 0, 0, 8, 1]


def test_samples_are_rows_of_their_own_and_repeat_what_passes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_parquet, "MAX_BATCH_LINES", 4)  # cut between samples of a row
    source = pa.table({"n": pa.array([10, 11], pa.int32())})
    first, second = arrow_rows(source)
    rows = [
        OutputRow("a", samples(0, 3), arrow_row=first.arrow_row),
        OutputRow("b", (fault(1),), location="x:2", arrow_row=second.arrow_row),
        OutputRow("c", samples(2, 2), passthrough={"n": 12}),
    ]
    columns = output_columns(pa.schema([("n", pa.int32())]), has_extra=False)
    written = table(tmp_path / "out.parquet", columns, *rows).to_pylist()
    assert [(row["id"], row["row_index"], row["sample_index"], row["n"]) for row in written] == [
        ("a", 0, 0, 10),
        ("a", 0, 1, 10),
        ("a", 0, 2, 10),
        ("b", 1, 0, 11),
        ("c", 2, 0, 12),
        ("c", 2, 1, 12),
    ]


def test_categories_of_many_inputs_have_room(tmp_path: Path) -> None:
    """pandas writes categories with 8-bit indices, which count to 127."""
    small = pa.dictionary(pa.int8(), pa.string())
    tables = [
        pa.table({"tag": pa.array([f"{name}{n}" for n in range(100)]).cast(small)})
        for name in "abc"
    ]
    columns = output_columns(tables[0].schema, has_extra=False)
    rows = [row for source in tables for row in arrow_rows(source)]
    written = table(tmp_path / "out.parquet", columns, *rows)
    assert written.schema.field("tag").type == pa.dictionary(pa.int32(), pa.string())
    assert written.column("tag").to_pylist() == [
        tag for source in tables for tag in source.column("tag").to_pylist()
    ]


def test_a_large_dictionary_is_not_held_with_every_few_rows(tmp_path: Path) -> None:
    tags = pa.array([f"a rather long tag with the number {n}" for n in range(20_000)])
    source = pa.table({"tag": tags.dictionary_encode()})
    [batch] = source.to_batches()
    columns = output_columns(source.schema, has_extra=False)
    path = tmp_path / "out.parquet"
    rows = [OutputRow(None, (answer(n),), arrow_row=(batch, n)) for n in range(0, 20_000, 10)]
    assert table(path, columns, *rows).column("tag").to_pylist() == tags.to_pylist()[::10]
    assert pq.ParquetFile(path).metadata.num_row_groups == 1


def test_ordered_categories_keep_their_order(tmp_path: Path) -> None:
    sizes = pa.DictionaryArray.from_arrays([2, 0], ["small", "middle", "large"], ordered=True)
    source = pa.table({"size": sizes})
    columns = output_columns(source.schema, has_extra=False)
    column = table(tmp_path / "out.parquet", columns, *arrow_rows(source)).column("size")
    assert column.type == pa.dictionary(pa.int32(), pa.string(), ordered=True)
    assert column.chunk(0).dictionary.to_pylist() == ["small", "middle", "large"]


def test_long_values_of_the_input_fill_a_batch_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column with 32-bit offsets overflows at 2 GiB in one batch."""
    monkeypatch.setattr(row_groups, "MIN_ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(row_groups, "ROW_GROUP_SHARE", 0)
    source = pa.table({"document": pa.array(["x" * 400_000] * 4, pa.string())})
    columns = output_columns(source.schema, has_extra=False)
    path = tmp_path / "out.parquet"
    rows = [OutputRow(None, samples(0, 3), arrow_row=row.arrow_row) for row in arrow_rows(source)]
    assert table(path, columns, *rows).num_rows == 12
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [3] * 4


def test_arrow_values_that_do_not_fit_the_jobs_column_go_to_extra(tmp_path: Path) -> None:
    source = pa.table({"n": pa.array(["1", "word"])})
    columns = output_columns(pa.schema([("n", pa.int64())]))
    written = table(tmp_path / "out.parquet", columns, *arrow_rows(source))
    assert written.column("extra").to_pylist() == ['{"n":"1"}', '{"n":"word"}']


def test_nan_in_a_column_of_floats_is_null(tmp_path: Path) -> None:
    source = pa.table({"x": pa.array([1.5, float("nan"), None])})
    columns = output_columns(source.schema, has_extra=False)
    written = table(tmp_path / "out.parquet", columns, *arrow_rows(source))
    assert written.column("x").to_pylist() == [1.5, None, None]


@pytest.mark.parametrize(
    ("values", "kind", "written_kind"),
    [
        (["a", None, "é"], pa.string_view(), pa.string()),
        ([b"\xff", None, b""], pa.binary_view(), pa.binary()),
        ([["a"], None, []], pa.list_(pa.string_view()), pa.list_(pa.string())),
        ([{"x": "a"}, None, {"x": None}], pa.struct({"x": pa.string_view()}), None),
        ([{"x": "a"}, None, {"x": None}], pa.struct({"x": CATEGORY}), None),
        ([["a"], None, ["b"]], pa.list_(CATEGORY), pa.list_(pa.string())),
    ],
)
def test_views_and_inner_categories_become_the_plain_strings_that_parquet_has(
    values: list[object], kind: pa.DataType, written_kind: pa.DataType | None, tmp_path: Path
) -> None:
    source = pa.table({"x": pa.array(values, kind)})
    columns = output_columns(source.schema)
    rows = [*arrow_rows(source), OutputRow(None, (answer(3),), passthrough={"x": 1})]
    written = table(tmp_path / "out.parquet", columns, *rows)
    assert written.column("x").to_pylist() == [*values, None]
    assert written.column("extra").to_pylist() == [None, None, None, '{"x":1}']
    assert written.schema.field("x").type == (written_kind or pa.struct({"x": pa.string()}))
