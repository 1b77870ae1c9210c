"""Which column is a row's id, which pass through to the output, and which must be there."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.errors import ConfigError
from nanobatch.io.column_checks import require_columns
from nanobatch.io.sources import resolve_inputs
from nanobatch.job_config import RowConfig
from tests.io.row_files import body_line, code_of, parser, read, write_bytes, write_jsonl


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        ("", ""),
        (7, "7"),
        (7.0, "7"),
        (1.5, "1.5"),
        (10**30, "1" + "0" * 30),
        (None, None),
    ],
)
def test_an_id_is_text_numbers_as_they_are_written(
    tmp_path: Path, value: object, text: str | None
) -> None:
    row_parser = parser()
    flat, batch = read(
        write_jsonl(tmp_path, [{"id": value, "prompt": "x"}, {"custom_id": value, "body": {}}])
    )
    assert row_parser.row_id(flat) == row_parser.row_id(batch) == text


def test_the_id_column_can_be_chosen(tmp_path: Path) -> None:
    (row,) = read(write_jsonl(tmp_path, [{"key": 5, "id": "other", "prompt": "x"}]))
    row_parser = parser(RowConfig(id_column="key"))
    assert row_parser.row_id(row) == "5"
    assert row_parser.passthrough(row) == {"id": "other"}


@pytest.mark.parametrize(
    ("row", "row_config"),
    [
        ({"id": None, "prompt": "x"}, RowConfig()),
        ({"id": None, "custom_id": None, "prompt": "x"}, RowConfig()),
        ({"id": None, "custom_id": "c", "prompt": "x"}, RowConfig()),
        ({"id": None, **body_line({"prompt": "x"})}, RowConfig()),
        ({"key": None, "prompt": "x"}, RowConfig(id_column="key")),
        ({"key": None}, RowConfig(id_column="key", template="x")),
    ],
)
def test_a_null_id_is_an_absent_id_and_no_column(
    tmp_path: Path, row: dict[str, object], row_config: RowConfig
) -> None:
    path = write_bytes(tmp_path, b"", "rows.parquet")
    pq.write_table(pa.Table.from_pylist([row, {**row, "id": "a", "key": "a"}]), path)
    for read_row in (read(write_jsonl(tmp_path, [row]))[0], read(path)[0]):
        assert parser(row_config).passthrough(read_row) == {}


def test_the_nan_of_a_parquet_column_of_ids_with_gaps_is_an_absent_id(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"", "rows.parquet")
    pq.write_table(pa.table({"id": [7.0, float("nan")], "prompt": ["x", "y"]}), path)
    rows = read(path)
    assert [parser().row_id(row) for row in rows] == ["7", None]
    assert [parser().passthrough(row) for row in rows] == [{}, {}]


def test_a_row_whose_id_is_no_id_has_none(tmp_path: Path) -> None:
    bad_id, bad_json = read(write_bytes(tmp_path, b'{"id": {}, "prompt": "x"}\n{"id": \n'))
    assert parser().row_id(bad_id) is None
    assert parser().row_id(bad_json) is None


def test_any_other_column_of_a_flat_row_passes_through(tmp_path: Path) -> None:
    columns = {"note": "kept", "score": 1.5, "tags": ["a"], "gone": None, "model": "m", "user": "u"}
    consumed = {"id": "a", "prompt": "x", "max_tokens": 2, "tools": [], "priority": 1}
    (row,) = read(write_jsonl(tmp_path, [{**consumed, **columns}]))
    assert parser().passthrough(row) == columns
    assert parser().columns(row) == {**consumed, **columns}


def test_other_top_level_keys_of_a_batch_line_pass_through(tmp_path: Path) -> None:
    line = {**body_line({"prompt": "x"}, method="POST"), "id": 3, "note": "kept"}
    (row,) = read(write_jsonl(tmp_path, [line]))
    assert parser().is_batch_line(row)
    assert parser().passthrough(row) == {"id": 3, "note": "kept"}


def test_a_text_line_passes_nothing_through(tmp_path: Path) -> None:
    (row,) = read(write_bytes(tmp_path, b"hello\n", "a.txt"))
    assert parser().passthrough(row) == {}
    assert parser().columns(row) == {"text": "hello"}


def test_columns_of_a_row_at_fault_pass_through_as_far_as_there_are_any(tmp_path: Path) -> None:
    content = b'{"prompt": 5, "note": "kept"}\n{"note": \n[1]\n'
    row_parser = parser()
    rows = read(write_bytes(tmp_path, content))
    assert [code_of(row_parser.parse(row)) for row in rows] == [
        "bad_type",
        "invalid_json",
        "not_an_object",
    ]
    assert [row_parser.passthrough(row) for row in rows] == [{"note": "kept"}, {}, {}]


def test_nan_in_a_pass_through_column_is_null(tmp_path: Path) -> None:
    content = b'{"prompt": "x", "score": NaN, "big": 1e999, "in": [{"a": -Infinity}]}\n'
    (row,) = read(write_bytes(tmp_path, content))
    assert code_of(parser().parse(row)) == "ok"
    assert parser().passthrough(row) == {"score": None, "big": None, "in": [{"a": None}]}


def test_a_missing_column_of_a_table_is_refused_with_the_closest_match(tmp_path: Path) -> None:
    sources = resolve_inputs([str(write_bytes(tmp_path, b"text,label\n", "a.csv"))])
    require_columns(RowConfig(prompt_column="text", id_column="label"), sources)
    with pytest.raises(ConfigError) as caught:
        require_columns(RowConfig(prompt_column="texts"), sources)
    assert caught.value.message.startswith("--prompt-column texts: ")
    assert caught.value.hint == "did you mean text?"
