"""More than 2 GiB of text in one column chunk, where 32-bit offsets end, takes little memory."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROW_BYTES = 1 << 18
NUM_ROWS = 8_400
MAX_GROWTH_KIB = 64_000

PROGRAM = """
import re, sys
from pathlib import Path
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs

def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

sources = resolve_inputs([sys.argv[1]])
num_chars, before_kib = 0, None
for row in iter_rows(sources):
    num_chars += len(row.fields()["prompt"])
    before_kib = before_kib or peak_kib()
(last,) = iter_rows(sources, start=row.row_index)
print(num_chars, len(last.fields()["prompt"]), peak_kib() - before_kib)
"""


def write_repeated(path: Path) -> None:
    """Write the same rows again and again into one row group; they are held once in memory."""
    texts = pa.array([f"{number:>{ROW_BYTES}}" for number in range(100)])
    column = pa.chunked_array([texts] * (NUM_ROWS // 100))
    pq.write_table(
        pa.table({"prompt": column}),
        path,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        row_group_size=NUM_ROWS,
    )


@pytest.mark.slow
def test_more_than_2_gib_of_text_in_one_row_group_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    write_repeated(path)
    metadata = pq.ParquetFile(path).metadata
    assert metadata.num_row_groups == 1
    assert metadata.row_group(0).total_byte_size > 2**31
    command = [sys.executable, "-c", PROGRAM, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    num_chars, last_chars, growth_kib = map(int, result.stdout.split())
    assert (num_chars, last_chars) == (NUM_ROWS * ROW_BYTES, ROW_BYTES)
    assert growth_kib < MAX_GROWTH_KIB
