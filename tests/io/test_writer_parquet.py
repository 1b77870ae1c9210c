import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanobatch.io import row_groups, writer_parquet
from nanobatch.io.column_typer import ColumnTyper
from nanobatch.io.columns import OutputColumns, output_columns
from nanobatch.io.output_row import OutputRow
from nanobatch.io.writers import open_writer
from nanobatch.request import RequestOutput, RowIndex
from tests.io.output_strategies import answer, fault
from tests.io.test_column_typer import json_values, without_nulls

TEXT = pa.large_string()


def table(path: Path, columns: OutputColumns, *rows: OutputRow) -> pa.Table:
    with open_writer(path, columns) as writer:
        for row in rows:
            writer.write(row)
    return pq.read_table(path)


def passed(
    path: Path, columns: OutputColumns, *values: Mapping[str, object]
) -> list[dict[str, Any]]:
    """Write rows with these pass-through values and return what is beside our columns."""
    rows = [
        OutputRow(None, (answer(place),), passthrough=value) for place, value in enumerate(values)
    ]
    written = table(path, columns, *rows)
    names = [name for name in written.column_names if name not in columns.base.names]
    return list(written.select(names).to_pylist())


def test_answers_and_errors_read_back_as_written(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([("label", TEXT)]), include_token_ids=True)
    rows = [
        OutputRow("a", (answer(0, "日本 \ud83d"),), passthrough={"label": "x"}),
        OutputRow(None, (fault(1),), location="in.jsonl:2"),
    ]
    written = table(tmp_path / "out.parquet", columns, *rows)
    assert written.schema.equals(columns.schema)
    first, second = written.to_pylist()
    assert first == {
        "row_index": 0,
        "id": "a",
        "sample_index": 0,
        "status": "ok",
        "generated_text": "日本 \ufffd",
        "finish_reason": "stop",
        "stop_reason": None,
        "prompt_tokens": 12,
        "cached_tokens": 4,
        "completion_tokens": 2,
        "error_code": None,
        "error_message": None,
        "token_ids": [40, 41],
        "label": "x",
        "extra": None,
    }
    assert {key: value for key, value in second.items() if value is not None} == {
        "row_index": 1,
        "sample_index": 0,
        "status": "error",
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "error_code": "bad_row",
        "error_message": "in.jsonl:2: row has 2 fields; the header has 3",
    }


def test_logprobs_are_floats_of_32_bits(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([]), include_logprobs=True)
    output = RequestOutput(row_index=RowIndex(0), logprobs=(-0.5, float("-inf")))
    written = table(tmp_path / "out.parquet", columns, OutputRow("a", (output,)))
    assert written.column("logprobs").to_pylist() == [[-0.5, float("-inf")]]


def test_the_file_is_compressed_with_zstd_and_carries_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    metadata = {"nanobatch.job": '{"rows": 1}', "nanobatch.model": '{"name": "é"}'}
    with open_writer(path, output_columns(pa.schema([])), metadata=metadata) as writer:
        writer.write(OutputRow("a", (answer(0),)))
    file = pq.ParquetFile(path)
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    found = file.schema_arrow.metadata
    assert {key.decode(): value.decode() for key, value in found.items()} == metadata


def test_row_groups_are_cut_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "MIN_ROW_GROUP_BYTES", 1 << 20)
    path = tmp_path / "out.parquet"
    columns = output_columns(pa.schema([]))
    table(path, columns, *[OutputRow(None, (answer(row, "x" * 1000),)) for row in range(5000)])
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)]
    assert sum(groups) == 5000
    assert all(500 <= num_rows <= 1536 for num_rows in groups[:-1])
    assert pq.read_table(path).column("row_index").to_pylist() == list(range(5000))


def test_row_groups_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "MIN_ROW_GROUP_BYTES", 1 << 16)
    monkeypatch.setattr(row_groups, "MAX_ROW_GROUP_BYTES", 1 << 18)
    monkeypatch.setattr(writer_parquet, "MAX_BATCH_LINES", 8)
    path = tmp_path / "out.parquet"
    columns = output_columns(pa.schema([]))
    table(path, columns, *[OutputRow(None, (answer(row, "x" * 1000),)) for row in range(20_000)])
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)]
    assert groups[0] < 80
    assert 200 < groups[-2] < 300
    assert groups[:-1] == sorted(groups[:-1])


def test_long_texts_do_not_pile_up_as_python_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "MIN_ROW_GROUP_BYTES", 1 << 20)
    path = tmp_path / "out.parquet"
    columns = output_columns(pa.schema([("document", TEXT)]))
    for row in passed(path, columns, *[{"document": f"{row}" * 300_000} for row in range(9)]):
        assert row["document"] == row["document"][0] * 300_000
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)] == [
        4,
        4,
        1,
    ]


def test_misfits_and_late_keys_go_to_extra(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([("n", pa.int64()), ("x", pa.float64()), ("t", TEXT)]))
    rows = passed(
        tmp_path / "out.parquet",
        columns,
        {"n": 1, "x": 2, "t": "a"},
        {"n": "one", "x": 2**53 + 1, "t": None, "late": {"k": [1]}},
        {"n": 2**63, "t": 5, "null": None},
        {"n": 1.5, "x": float("nan")},
    )
    assert rows[0] == {"n": 1, "x": 2.0, "t": "a", "extra": None}
    extras = [row.pop("extra") for row in rows[1:]]
    assert rows[1:] == [{"n": None, "x": None, "t": None}] * 3
    assert [json.loads(text) for text in extras] == [
        {"n": "one", "x": 2**53 + 1, "late": {"k": [1]}},
        {"n": 2**63, "t": 5},
        {"n": 1.5},
    ]


def test_only_selected_late_keys_go_to_extra(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([]), selected=["late"])
    assert passed(tmp_path / "out.parquet", columns, {"late": 1, "other": 2}, {"other": 3}) == [
        {"extra": '{"late":1}'},
        {"extra": None},
    ]


def test_surrogates_in_columns_and_in_nested_values_are_replaced(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([("t", TEXT), ("l", pa.list_(TEXT))]))
    (row,) = passed(tmp_path / "out.parquet", columns, {"t": "\ud83d", "l": ["a\udc00", None]})
    assert row == {"t": "\ufffd", "l": ["a\ufffd", None], "extra": None}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), json_values), min_size=1, max_size=6))
def test_nothing_of_a_row_is_dropped(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    typer = ColumnTyper()
    for row in rows[:3]:
        typer.observe(row)
    written = passed(tmp_path / "out.parquet", output_columns(typer.schema()), *rows)
    for row, found in zip(rows, written, strict=True):
        extra = json.loads(found.pop("extra") or "{}")
        assert not {name for name, value in found.items() if value is not None} & extra.keys()
        assert without_nulls(found | extra) == without_nulls(row)
