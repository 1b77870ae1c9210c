import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nanobatch.errors import OutputError, StorageError
from nanobatch.io.columns import output_columns
from nanobatch.io.output_flat import FlatEncoder
from nanobatch.io.output_row import OutputRow
from nanobatch.io.writer_jsonl import JsonlStreamWriter
from nanobatch.io.writers import OutputFormat, open_writer, output_format
from tests.io.output_strategies import answer
from tests.io.test_columns import INPUT


def test_the_format_goes_by_the_suffix() -> None:
    assert output_format(Path("a.b/out.jsonl")) is OutputFormat.JSONL
    assert output_format(Path("out.NDJSON")) is OutputFormat.JSONL
    assert output_format(Path("out.jsonl.gz")) is OutputFormat.JSONL
    assert output_format(Path("a.parquet.d/out.ndjson.ZST")) is OutputFormat.JSONL
    assert output_format(Path("out.parquet")) is OutputFormat.PARQUET


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("out.csv", "has the suffix '.csv'"),
        ("out", "has no suffix"),
        ("x.", "has no suffix"),
        ("out.gz", "has the suffix '.gz'"),
        ("out.csv.zst", "has the suffix '.zst'"),
    ],
)
def test_an_unknown_suffix_is_refused_with_those_that_are_known(name: str, what: str) -> None:
    with pytest.raises(OutputError) as caught:
        open_writer(Path(name), output_columns(INPUT))
    assert caught.value.message == f"output {name} {what}"
    assert (
        caught.value.hint == "supported are .jsonl, .ndjson, .parquet; JSONL also with .gz or .zst"
    )


def test_a_parquet_output_is_not_compressed_as_a_whole() -> None:
    with pytest.raises(OutputError) as caught:
        output_format(Path("out.parquet.gz"))
    assert caught.value.message == "output out.parquet.gz has the suffix '.gz' after '.parquet'"
    assert caught.value.hint == "Parquet is compressed inside: end the name after .parquet"


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_an_output_appears_complete_or_not_at_all(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(KeyboardInterrupt), open_writer(path, output_columns(INPUT)) as writer:
        writer.write(OutputRow("a", (answer(0),)))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with open_writer(path, output_columns(INPUT)) as writer:
        writer.write(OutputRow("a", (answer(0),)))
        assert not path.exists()
    assert list(tmp_path.iterdir()) == [path]


def test_zero_rows_are_a_valid_output_with_the_full_schema(tmp_path: Path) -> None:
    columns = output_columns(INPUT)
    for name in ("out.jsonl", "out.parquet"):
        with open_writer(tmp_path / name, columns, metadata={"nanobatch.job": "{}"}):
            pass
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.num_rows == 0
    assert table.schema.equals(columns.schema)


ENCODE = FlatEncoder(output_columns(INPUT)).encode


class FullStream(io.BytesIO):
    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


def test_standard_output_gets_a_flushed_line_per_row() -> None:
    stream = io.BytesIO()
    with JsonlStreamWriter(stream, ENCODE) as writer:
        writer.write(OutputRow("a", (answer(4),)))
        assert json.loads(stream.getvalue())["row_index"] == 4
        assert stream.getvalue().endswith(b"}\n")
    with pytest.raises(RuntimeError), JsonlStreamWriter(stream, ENCODE):
        raise RuntimeError
    assert not stream.closed


def test_a_closed_standard_output_is_a_storage_error() -> None:
    writer = JsonlStreamWriter(FullStream(), ENCODE)
    with pytest.raises(StorageError) as caught:
        writer.write(OutputRow("a", (answer(4),)))
    assert caught.value.message == "cannot write standard output: Broken pipe"
    assert caught.value.hint == (
        "rows on standard output are not kept for a later run; -o FILE makes a run resumable"
    )
