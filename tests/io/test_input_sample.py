"""An input is known again by its name, its size and blocks spread over it, wherever it is."""

import gzip
from pathlib import Path

import fsspec
import pytest

from nanobatch.config import KIB, MIB
from nanobatch.errors import InputError
from nanobatch.io.input_sample import sampled_hash, source_sample, source_samples
from nanobatch.io.sources import resolve_inputs
from tests.io.row_files import write_bytes, write_jsonl


def test_a_small_file_is_hashed_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(MIB))
    before = sampled_hash(path)
    for offset in (0, 333_333, MIB - 1):
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(b"\x01")
        assert sampled_hash(path) != before
        before = sampled_hash(path)


def test_a_large_file_is_sampled_at_its_ends_and_between(tmp_path: Path) -> None:
    path = tmp_path / "file"
    size = 40 * MIB
    with path.open("wb") as file:
        file.truncate(size)
    hashes = {sampled_hash(path)}
    last = size - 64 * KIB
    for offset in (0, last // 15, last + 64 * KIB - 1):
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(b"\x01")
        hashes.add(sampled_hash(path))
    with path.open("ab") as file:
        file.write(b"\x00")
    hashes.add(sampled_hash(path))
    assert len(hashes) == 5


def test_an_input_is_known_by_its_name_its_size_and_its_sample(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, [{"a": 1}])
    (source,) = resolve_inputs([str(path)])
    assert source_sample(source) == {"name": path.name, "bytes": 9, "sample": sampled_hash(path)}


def test_a_compressed_input_is_known_by_its_own_bytes(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, gzip.compress(b'{"a":1}\n'), "a.jsonl.gz")
    (source,) = resolve_inputs([str(path)])
    assert source_sample(source) == {
        "name": "a.jsonl.gz",
        "bytes": path.stat().st_size,
        "sample": sampled_hash(path),
    }


@pytest.mark.parametrize("num_bytes", [100, 3 * MIB])
def test_a_remote_input_is_known_as_a_local_one(tmp_path: Path, num_bytes: int) -> None:
    content = bytes(index % 251 for index in range(num_bytes))
    local = write_bytes(tmp_path, content, "a.txt")
    memory = fsspec.filesystem("memory")
    memory.pipe("/sample/a.txt", content)
    names = [str(local), "memory://sample/a.txt"]
    one, other = source_samples(resolve_inputs(names))
    assert one == other
    memory.rm("/sample", recursive=True)


def test_an_input_that_is_gone_by_then_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, [{"a": 1}])
    (source,) = resolve_inputs([str(path)])
    path.unlink()
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        source_sample(source)
