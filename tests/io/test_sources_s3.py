"""S3 is read as files are, through Arrow, from a real server that this module starts."""

import gzip
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.errors import InputError, InputReadError
from nanobatch.io.input_row import InputRow
from nanobatch.io.input_sample import source_samples
from nanobatch.io.input_source import total_bytes
from nanobatch.io.readers import count_rows, iter_rows
from nanobatch.io.sources import resolve_inputs
from tests.io.row_files import CASES, read, write_bytes
from tests.io.s3_store import put, remove, s3_store

HOSTILE = (CASES / "hostile.jsonl").read_bytes()


def parquet(table: pa.Table, **options: object) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, **options)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


OBJECTS = {
    "in/hostile.jsonl": HOSTILE,
    "in/hostile.jsonl.gz": gzip.compress(HOSTILE),
    "in/hostile.jsonl.zst": pa.compress(HOSTILE, codec="zstd", asbytes=True),
    "in/table.csv": b'a,b\n1,"x\ny"\n3,4\n',
    "in/lines.txt": b"one\n\ntwo",
    "in/table.parquet": parquet(pa.table({"a": range(1_000)}), row_group_size=100),
}


@pytest.fixture(scope="module", autouse=True)
def endpoint() -> Iterator[str]:
    with s3_store() as address:
        put(OBJECTS)
        yield address


def facts(rows: list[InputRow]) -> list[tuple[int, int, int, int]]:
    return [(row.row_index, row.line, row.payload_hash, row.offset_bytes) for row in rows]


def refusal(url: str) -> InputError:
    with pytest.raises(InputError) as caught:
        resolve_inputs([url])
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


@contextmanager
def access_refused(endpoint: str) -> Iterator[None]:
    """Make the server ask for credentials of people that it knows, and it knows nobody."""
    address, headers = f"{endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    urlopen(Request(address, b"0", headers)).close()
    try:
        yield
    finally:
        urlopen(Request(address, b"inf", headers)).close()


def paths(url: str) -> list[str]:
    return [source.path.removeprefix("s3://bucket/") for source in resolve_inputs([url])]


@pytest.mark.parametrize("key", OBJECTS)
def test_every_format_is_read_as_a_local_file_is(tmp_path: Path, key: str) -> None:
    local = write_bytes(tmp_path, OBJECTS[key], Path(key).name)
    sources = resolve_inputs([f"s3://bucket/{key}"])
    rows = list(iter_rows(sources))
    assert facts(rows) == facts(read(local))
    assert rows[0].path == f"s3://bucket/{key}"
    assert (count_rows(sources), total_bytes(sources)) == (len(rows), len(OBJECTS[key]))
    assert source_samples(sources) == source_samples(resolve_inputs([str(local)]))


def test_an_object_of_many_requests_is_read_whole() -> None:
    lines = [f'{{"a":"{"x" * (number % 700)}{number}"}}' for number in range(30_000)]
    put({"long.jsonl": "\n".join(lines).encode()})
    rows = list(iter_rows(resolve_inputs(["s3://bucket/long.jsonl"])))
    assert len(rows) == 30_000
    assert rows[-1].fields() == {"a": "x" * (29_999 % 700) + "29999"}


def test_patterns_and_folders_are_read_without_what_jobs_wrote() -> None:
    names = ["b.jsonl", "a.jsonl", "_SUCCESS", ".x.jsonl", "done.jsonl", "done.jsonl.summary.json"]
    put({f"folder/{name}": b'{"a":1}\n' for name in [*names, "sub/c.jsonl", "README.md"]})
    read_names = ["folder/a.jsonl", "folder/b.jsonl", "folder/sub/c.jsonl"]
    assert paths("s3://bucket/folder") == paths("s3://bucket/folder/") == read_names
    assert paths("s3://bucket/folder/[ab].jsonl") == read_names[:2]
    assert paths("s3://bucket/f*/**/c.jsonl") == read_names[2:]


def test_a_key_that_is_the_pattern_itself_goes_first() -> None:
    put({"odd/a[1]?.jsonl": b"", "odd/a1x.jsonl": b""})
    assert paths("s3://bucket/odd/a[1]?.jsonl") == ["odd/a[1]?.jsonl"]


@pytest.mark.parametrize("place", ["bucket/no.jsonl", "no-bucket/a.jsonl", "no-bucket"])
def test_what_is_not_there_is_refused(place: str) -> None:
    assert refusal(f"s3://{place}").message == f"s3://{place} does not exist"


@pytest.mark.parametrize("place", ["bucket/no/*.jsonl", "no-bucket/*.jsonl"])
def test_a_pattern_without_match_is_refused(place: str) -> None:
    assert refusal(f"s3://{place}").message == f"s3://{place} matches no file"


def test_a_folder_with_nothing_to_read_is_refused() -> None:
    put({"docs/README.md": b"x"})
    assert (
        refusal("s3://bucket/docs").message == "s3://bucket/docs is a folder with nothing to read"
    )


def test_a_0_byte_parquet_is_refused() -> None:
    put({"empty.parquet": b""})
    assert "is empty (0 bytes)" in refusal("s3://bucket/empty.parquet").message


def test_a_store_that_refuses_access_is_an_error_with_a_hint(endpoint: str) -> None:
    with access_refused(endpoint):
        error = refusal("s3://bucket/in/lines.txt")
    assert error.message.startswith("s3://bucket/in/lines.txt cannot be opened: ")
    assert "ACCESS_DENIED" in error.message
    assert "AWS credentials" in str(error.hint)


def test_access_refused_in_mid_run_is_fatal_with_file_and_offset(endpoint: str) -> None:
    sources = resolve_inputs(["s3://bucket/in/hostile.jsonl"])
    with access_refused(endpoint), pytest.raises(InputReadError) as caught:
        list(iter_rows(sources))
    assert caught.value.message.startswith("cannot read s3://bucket/in/hostile.jsonl at byte 0: ")


def test_a_store_that_does_not_answer_is_refused_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    start_s = time.monotonic()
    error = refusal("s3://bucket/in/lines.txt")
    assert time.monotonic() - start_s < 15
    assert error.message.startswith("s3://bucket/in/lines.txt cannot be opened: ")
    assert "AWS_ENDPOINT_URL" in str(error.hint)


def test_an_object_removed_in_mid_run_is_fatal_with_file_and_offset() -> None:
    put({"going.jsonl": b'{"a":1}\n' * 100_000})
    rows = iter_rows(resolve_inputs(["s3://bucket/going.jsonl"]))
    next(rows)
    remove("going.jsonl")
    with pytest.raises(InputReadError) as caught:
        list(rows)
    assert caught.value.message.startswith("cannot read s3://bucket/going.jsonl at byte ")


def test_an_object_replaced_in_mid_run_is_fatal() -> None:
    put({"shrinking.jsonl": b'{"a":1}\n' * 50})
    sources = resolve_inputs(["s3://bucket/shrinking.jsonl"])
    put({"shrinking.jsonl": b'{"a":1}\n' * 49})
    with pytest.raises(InputReadError, match="ends at byte 392; it had 400 bytes"):
        list(iter_rows(sources))


def test_a_compressed_object_that_is_cut_is_fatal_with_its_offset() -> None:
    content = gzip.compress("".join(f'{{"a":{number}}}\n' for number in range(50_000)).encode())
    put({"cut.jsonl.gz": content[:-1_000]})
    with pytest.raises(InputReadError, match=r"at byte [\d,]+: Truncated compressed stream"):
        list(iter_rows(resolve_inputs(["s3://bucket/cut.jsonl.gz"])))


def test_one_row_group_of_any_size_is_read_with_bounded_memory() -> None:
    texts = pa.table({"prompt": [f"{number} " + "x" * 20_000 for number in range(2_500)]})
    content = parquet(texts, compression="none", use_dictionary=False)
    put({"large.parquet": content})
    del texts
    sources = resolve_inputs(["s3://bucket/large.parquet"])
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    for _ in iter_rows(sources):
        most = max(most, pool.bytes_allocated() - before)
    assert len(content) > 50_000_000
    assert most < 30_000_000


@pytest.mark.parametrize("reads_all", [True, False])
def test_a_program_that_read_a_store_ends_at_once_and_says_nothing(reads_all: bool) -> None:
    program = (
        "from nanobatch.io.readers import iter_rows\n"
        "from nanobatch.io.sources import resolve_inputs\n"
        "rows = iter_rows(resolve_inputs(['s3://bucket/in/hostile.jsonl']))\n"
        f"print(len(list(rows)) if {reads_all} else next(rows).line)"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert (int(result.stdout) > 0, result.stderr) == (True, "")
