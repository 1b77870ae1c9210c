"""Writers on a disk that fills up while they write."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nanobatch

SOURCE_FOLDER = str(Path(nanobatch.__file__).parent.parent)

FILL_A_LIMITED_DISK = """
import os, resource, sys
from pathlib import Path
import pyarrow as pa
from nanobatch.errors import StorageError
from nanobatch.io.columns import output_columns
from nanobatch.io.output_row import OutputRow
from nanobatch.io.writers import open_writer
from nanobatch.request import RequestOutput, RowIndex

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with open_writer(Path(sys.argv[1]), output_columns(pa.schema([]))) as writer:
        for row in range(40_000):
            text = os.urandom(200).hex()
            writer.write(OutputRow(None, (RequestOutput(row_index=RowIndex(row), text=text),)))
except StorageError as error:
    print(error.message)
"""


@pytest.mark.parametrize(
    ("name", "limit_bytes"),
    [
        ("out.parquet", 1 << 20),
        ("out.parquet", 6_000_000),
        ("out.jsonl", 1 << 20),
        ("out.jsonl.gz", 1 << 20),
        ("out.jsonl.zst", 1 << 20),
    ],
)
def test_a_full_disk_names_the_path_and_leaves_nothing(
    name: str, limit_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / name
    finished = subprocess.run(
        [sys.executable, "-c", FILL_A_LIMITED_DISK, str(path), str(limit_bytes)],
        env=os.environ | {"PYTHONPATH": SOURCE_FOLDER},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert finished.stdout == f"cannot write {path}: File too large\n"
    assert finished.stderr == ""
    assert list(tmp_path.iterdir()) == []
