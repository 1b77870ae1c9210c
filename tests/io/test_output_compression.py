"""Compressed JSONL: the bytes that other programs read."""

import gc
import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.json
import pytest

from nanobatch.io.columns import output_columns
from nanobatch.io.output_row import OutputRow
from nanobatch.io.writers import open_writer
from tests.io.output_strategies import answer

COLUMNS = output_columns(pa.schema([]))
NAMES = ["out.jsonl.gz", "out.jsonl.zst", "out.ndjson.GZ"]
NUM_ROWS = 3000  # more than one buffer


def write(path: Path, num_rows: int = NUM_ROWS) -> bytes:
    with open_writer(path, COLUMNS) as writer:
        for row in range(num_rows):
            writer.write(OutputRow(f"row {row}", (answer(row),)))
    return path.read_bytes()


def content(path: Path) -> bytes:
    codec = "zstd" if path.suffix == ".zst" else "gzip"
    with pa.input_stream(path, compression=codec) as stream:
        read: bytes = stream.read()
        return read


@pytest.mark.parametrize("name", NAMES)
def test_compressed_jsonl_holds_the_lines_of_plain_jsonl(name: str, tmp_path: Path) -> None:
    plain = write(tmp_path / "out.jsonl")
    write(tmp_path / name)
    assert content(tmp_path / name) == plain
    assert (tmp_path / name).stat().st_size < len(plain) / 5


def test_gzip_and_pyarrow_read_what_we_wrote(tmp_path: Path) -> None:
    write(tmp_path / "out.jsonl.gz")
    with gzip.open(tmp_path / "out.jsonl.gz", "rt") as lines:
        assert [json.loads(line)["row_index"] for line in lines] == list(range(NUM_ROWS))
    write(tmp_path / "out.jsonl.zst")
    table = pyarrow.json.read_json(tmp_path / "out.jsonl.zst")
    assert table.column("row_index").to_pylist() == list(range(NUM_ROWS))


@pytest.mark.parametrize(
    ("program", "name"), [("zcat", "out.jsonl.gz"), ("zstdcat", "out.jsonl.zst")]
)
def test_command_line_tools_read_what_we_wrote(program: str, name: str, tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    write(tmp_path / name)
    read = subprocess.run([program, tmp_path / name], capture_output=True, check=True)
    assert read.stdout == write(tmp_path / "out.jsonl")


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_depend_on_the_rows_alone(name: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert write(tmp_path / name) == write(other / f"another-{name}")


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_are_a_valid_compressed_file(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, 0)
    assert content(tmp_path / name) == b""


def test_a_zstandard_file_is_one_frame(tmp_path: Path) -> None:
    """Some readers stop after the first frame: pandas does, without a word."""
    assert write(tmp_path / "out.jsonl.zst").count(b"\x28\xb5\x2f\xfd") == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_compressed_file_appears_complete_or_not_at_all(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(KeyboardInterrupt), open_writer(path, COLUMNS) as writer:
        for row in range(NUM_ROWS):
            writer.write(OutputRow(None, (answer(row),)))
        raise KeyboardInterrupt
    del writer
    gc.collect()  # a stream that is dropped writes its end, which must go nowhere
    assert list(tmp_path.iterdir()) == []
