"""A range of rows is what a slice of all rows would be, and rows are counted without being made."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobatch.errors import InputReadError
from nanobatch.io import lines
from nanobatch.io.input_row import InputRow
from nanobatch.io.readers import count_rows, iter_rows
from nanobatch.io.sources import resolve_inputs
from tests.io.row_files import write_bytes

LINE_PARTS = [b"{", b'"', b",", b"\n", b"\n\n", b"\r\n", b"\xef\xbb\xbf", b"\xff", b" ", b"ab"]


def parquet(num_rows: int) -> bytes:
    buffer = pa.BufferOutputStream()
    row_group_size = num_rows % 7 + 1
    pq.write_table(pa.table({"a": range(num_rows)}), buffer, row_group_size=row_group_size)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def zstd(content: bytes) -> bytes:
    compressed: bytes = pa.compress(content, codec="zstd", asbytes=True)
    return compressed


def same(content: bytes) -> bytes:
    return content


text = st.lists(st.sampled_from(LINE_PARTS), max_size=40).map(b"".join)
compressions: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("", same),
    (".gz", gzip.compress),
    (".zst", zstd),
]
text_files = st.builds(
    lambda name, content, compression: (
        name + compression[0],
        compression[1](b"a,b\n" + content if name == ".csv" else content),
    ),
    st.sampled_from([".jsonl", ".txt", ".csv"]),
    text,
    st.sampled_from(compressions),
)
parquet_files = st.integers(0, 40).map(lambda num_rows: (".parquet", parquet(num_rows)))
files = st.lists(st.one_of(text_files, parquet_files), min_size=1, max_size=4)


def facts(row: InputRow) -> tuple[int, str, int, int, str]:
    return (row.row_index, row.location, row.offset_bytes, row.payload_hash, repr(row.fields()))


@settings(deadline=None)
@given(files=files, start=st.integers(0, 70), num_rows=st.integers(0, 70), chunk=st.integers(1, 99))
def test_a_range_is_a_slice_of_all_rows_and_counting_counts_them(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[str, bytes]],
    start: int,
    num_rows: int,
    chunk: int,
) -> None:
    folder = tmp_path_factory.mktemp("ranges")
    names = [
        str(write_bytes(folder, content, f"{number}{suffix}"))
        for number, (suffix, content) in enumerate(files)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK_BYTES", chunk)
        sources = resolve_inputs(names)
        rows = list(map(facts, iter_rows(sources)))
        stop = start + num_rows
        assert list(map(facts, iter_rows(sources, start=start, stop=stop))) == rows[start:stop]
        assert list(map(facts, iter_rows(sources, start=start))) == rows[start:]
        assert count_rows(sources) == len(rows) == len({row[0] for row in rows})


def test_an_empty_range_opens_nothing(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"{}\n")
    sources = resolve_inputs([str(path)])
    path.unlink()
    assert list(iter_rows(sources, start=5, stop=5)) == []
    assert list(iter_rows(sources, start=5, stop=2)) == []


def test_row_groups_before_a_range_are_not_read(tmp_path: Path) -> None:
    texts = {"a": [f"{number} " + "x" * 999 for number in range(4_000)]}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(texts), path, use_dictionary=False, row_group_size=1_000)
    last = write_bytes(tmp_path, b'{"a":1}\n', "b.jsonl")
    sources = resolve_inputs([str(path), str(last)])
    content = bytearray(path.read_bytes())
    content[100_000 : len(content) // 2] = bytes(len(content) // 2 - 100_000)
    path.write_bytes(content)
    assert [row.line for row in iter_rows(sources, start=3_998)] == [3_999, 4_000, 1]
    assert count_rows(sources) == 4_001
    with pytest.raises(InputReadError):
        list(iter_rows(sources))


def test_files_of_known_length_before_a_range_are_not_opened(tmp_path: Path) -> None:
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for path in (first, second):
        pq.write_table(pa.table({"a": range(10)}), path)
    sources = resolve_inputs([str(first), str(second)])
    first.unlink()
    rows = list(iter_rows(sources, start=10, stop=12))
    assert [(row.row_index, row.location) for row in rows] == [
        (10, f"{second}:1"),
        (11, f"{second}:2"),
    ]


def test_an_input_that_fails_cannot_be_counted(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b'{"a":1}\n' * 10)
    sources = resolve_inputs([str(path)])
    path.write_bytes(b'{"a":1}\n')
    with pytest.raises(InputReadError, match="ends at byte 8"):
        count_rows(sources)


def test_rows_of_a_pattern_keep_their_number_in_any_range(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_bytes(tmp_path, f'{{"in":{json.dumps(name)}}}\n\n'.encode() * 3, f"{name}.jsonl")
    sources = resolve_inputs([f"{tmp_path}/*.jsonl"])
    rows = iter_rows(sources, start=2, stop=4)
    assert [(row.row_index, row.line, row.fields()) for row in rows] == [
        (2, 5, {"in": "a"}),
        (3, 1, {"in": "b"}),
    ]
