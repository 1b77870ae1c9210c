"""Compressed inputs are read like plain ones; progress goes by the bytes of the file on disk."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.errors import InputError, InputReadError
from nanobatch.io.input_row import InputRow
from nanobatch.io.input_source import total_bytes
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs
from tests.io.row_files import CASES, read, write_bytes

Compress = Callable[[bytes], bytes]


def zstd(content: bytes) -> bytes:
    compressed: bytes = pa.compress(content, codec="zstd", asbytes=True)
    return compressed


CODECS = pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstd)], ids=["gzip", "zstd"]
)
CONTENTS = {
    ".jsonl": b'{"a":1}\n\n\xef\xbb\xbf{"a":2}\r\n{"a":"x\xff"}\n',
    ".ndjson": b'{"a":1}\n{"a":2}',
    ".csv": b'a,b\n1,"x\ny"\n\n3,4\n5\n',
    ".txt": b"\xef\xbb\xbfone\n \ntwo\r\n",
}


def noise(num_bytes: int) -> str:
    return random.Random(num_bytes).randbytes(num_bytes // 2).hex()


def facts(rows: list[InputRow]) -> list[tuple[int, int, int, object]]:
    return [(row.row_index, row.line, row.payload_hash, row.fields()) for row in rows]


def refusal(path: Path, *input_format: str) -> InputError:
    with pytest.raises(InputError) as caught:
        resolve_inputs([str(path)], *input_format)  # type: ignore[arg-type]
    assert caught.value.hint
    return caught.value


@CODECS
@pytest.mark.parametrize("name", CONTENTS)
def test_a_compressed_input_gives_the_rows_of_the_plain_one(
    tmp_path: Path, name: str, suffix: str, compress: Compress
) -> None:
    plain = write_bytes(tmp_path, CONTENTS[name], f"plain{name}")
    packed = write_bytes(tmp_path, compress(CONTENTS[name]), f"packed{name}{suffix}")
    assert facts(read(packed)) == facts(read(plain))


@CODECS
def test_hostile_lines_are_the_same_compressed(
    tmp_path: Path, suffix: str, compress: Compress
) -> None:
    plain = CASES / "hostile.jsonl"
    packed = write_bytes(tmp_path, compress(plain.read_bytes()), f"hostile.jsonl{suffix}")
    assert facts(read(packed)) == facts(read(plain))


@CODECS
def test_parts_compressed_one_by_one_are_one_file(
    tmp_path: Path, suffix: str, compress: Compress
) -> None:
    lines = [f'{{"a":"{noise(300_000)}"}}\n'.encode(), b"", b'{"a":', b"2}\n", b""]
    path = write_bytes(tmp_path, b"".join(map(compress, lines)), f"a.jsonl{suffix}")
    first, second = read(path)
    assert (first.line, second.line, second.fields()) == (1, 2, {"a": 2})


@CODECS
def test_bytes_are_those_of_the_file_on_disk(
    tmp_path: Path, suffix: str, compress: Compress
) -> None:
    content = "".join(f'{{"a":"{noise(1_000 + number)}"}}\n' for number in range(1_000)).encode()
    path = write_bytes(tmp_path, compress(content), f"a.jsonl{suffix}")
    last = write_bytes(tmp_path, b'{"a":1}\n', "b.jsonl")
    sources = resolve_inputs([str(path), str(last)])
    offsets = [row.offset_bytes for row in iter_rows(sources)]
    size_bytes = path.stat().st_size
    assert total_bytes(sources) == size_bytes + 8
    assert offsets == sorted(offsets)
    assert len({*offsets}) > 3
    assert offsets[-2:] == [size_bytes, size_bytes + 8]


@CODECS
@pytest.mark.parametrize("name", ["a.jsonl", "a", "a.csv"])
def test_a_compressed_file_is_recognised_whatever_its_name(
    tmp_path: Path, name: str, suffix: str, compress: Compress
) -> None:
    path = write_bytes(tmp_path, compress(b'{"a":1}\n'), name)
    (row,) = read(path, input_format="jsonl")
    assert row.fields() == {"a": 1}


@CODECS
def test_with_a_format_any_name_that_says_compressed_will_do(
    tmp_path: Path, suffix: str, compress: Compress
) -> None:
    path = write_bytes(tmp_path, compress(b'{"a":1}\n'), f"dump{suffix}")
    assert "has no known suffix" in refusal(path).message
    assert [row.fields() for row in read(path, input_format="jsonl")] == [{"a": 1}]


@CODECS
def test_zero_rows_are_valid_and_zero_bytes_are_refused(
    tmp_path: Path, suffix: str, compress: Compress
) -> None:
    assert read(write_bytes(tmp_path, compress(b""), f"a.jsonl{suffix}")) == []
    path = write_bytes(tmp_path, b"", f"b.jsonl{suffix}")
    codec = {".gz": "gzip", ".zst": "zstd"}[suffix]
    assert refusal(path).message == f"{path} is empty (0 bytes), but its name says {codec}"


def test_plain_text_that_is_named_compressed_is_refused(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b'{"a":1}\n', "a.jsonl.gz")
    assert refusal(path).message == f"{path} is not gzip data, but its name says gzip"


@CODECS
def test_utf_16_in_a_compressed_file_is_one_file_level_error(
    tmp_path: Path, suffix: str, compress: Compress
) -> None:
    path = write_bytes(tmp_path, compress('{"a":1}\n'.encode("utf-16")), f"a.jsonl{suffix}")
    assert refusal(path).message == f"{path} is UTF-16 or UTF-32 text, not UTF-8 jsonl"


def test_a_compressed_parquet_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1]}), plain)
    path = write_bytes(tmp_path, gzip.compress(plain.read_bytes()), "a.parquet.gz")
    assert refusal(path).message.startswith(f"{path} is compressed as a whole, and Parquet is")
    assert "not a readable Parquet file" in refusal(path, "parquet").message


@CODECS
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_file_cut_near_its_start_is_refused(
    tmp_path: Path, name: str, suffix: str, compress: Compress
) -> None:
    content = compress(b"a,b\n" + noise(200_000).encode())
    path = write_bytes(tmp_path, content[:2_000], f"{name}{suffix}")
    message = refusal(path).message
    assert message.endswith("Truncated compressed stream")
    assert message.startswith(f"{path} is not readable ")


def test_damage_that_only_the_checksum_shows_is_fatal_at_the_end(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(b'{"a":1}\n' * 100_000 + noise(500_000).encode()))
    content[len(content) // 2] ^= 1
    path = write_bytes(tmp_path, bytes(content), "a.jsonl.gz")
    with pytest.raises(InputReadError, match="data check"):
        list(iter_rows(resolve_inputs([str(path)])))


def test_damage_in_the_header_of_a_csv_is_refused(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(noise(100_000).encode()))
    content[30_000] ^= 255  # beyond what is sniffed of every file, but the header goes on
    path = write_bytes(tmp_path, bytes(content), "a.csv.gz")
    assert refusal(path).message.startswith(f"cannot read {path} at byte 0: ")


@CODECS
@pytest.mark.parametrize("fault", ["cut", "damaged"])
def test_a_fault_in_mid_file_is_fatal_with_file_and_offset_on_disk(
    tmp_path: Path, suffix: str, compress: Compress, fault: str
) -> None:
    lines = [f'{{"a":"{noise(1_000 + number)}"}}\n'.encode() for number in range(2_000)]
    first, second = compress(b"".join(lines[:1_000])), compress(b"".join(lines[1_000:]))
    middle = len(first)
    content = first + (second[:200] if fault == "cut" else b"\xff" + second)
    path = write_bytes(tmp_path, content, f"a.jsonl{suffix}")
    rows: list[InputRow] = []
    with pytest.raises(InputReadError) as caught:
        rows.extend(iter_rows(resolve_inputs([str(path)])))
    assert 800 < len(rows) <= 1_000
    head, _, reason = caught.value.message.partition(": ")
    offset_bytes = int(head.removeprefix(f"cannot read {path} at byte ").replace(",", ""))
    assert reason
    assert middle - 300_000 < offset_bytes <= len(content)


def test_a_small_file_that_holds_much_is_read_with_bounded_memory(tmp_path: Path) -> None:
    content = gzip.compress((b'{"a":1}' + b" " * 5_000 + b"\n") * 20_000)
    path = write_bytes(tmp_path, content, "a.jsonl.gz")
    sources = resolve_inputs([str(path)])
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    for _ in iter_rows(sources):
        most = max(most, pool.bytes_allocated() - before)
    assert path.stat().st_size < 1_000_000
    assert most < 4_000_000
