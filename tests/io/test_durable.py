import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import nanobatch
from nanobatch.errors import OutputError, StorageError
from nanobatch.io.durable import (
    AtomicFile,
    remove_stale_temporaries,
    require_free_bytes,
    storage_error,
    write_json_atomically,
)

SOURCE_FOLDER = str(Path(nanobatch.__file__).parent.parent)


def test_a_file_appears_only_when_it_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    file = AtomicFile(path)
    file.write(b"one\n")
    assert not path.exists()
    assert file.tell() == 4
    file.commit()
    assert path.read_bytes() == b"one\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]
    assert file.closed


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"old")
    with AtomicFile(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_an_exception_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), AtomicFile(path) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"old"]


def test_temporary_files_are_hidden_and_in_the_same_folder(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "out.parquet")
    (temporary,) = tmp_path.iterdir()
    assert temporary.name.startswith(".out.parquet.")
    file.abort()
    file.abort()
    assert list(tmp_path.iterdir()) == []


def test_missing_parents_are_created(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "a" / "b" / "out.jsonl") as file:
        file.write(b"x")
    assert (tmp_path / "a" / "b" / "out.jsonl").read_bytes() == b"x"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_on_the_mode(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        with AtomicFile(tmp_path / "out.jsonl") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == mode


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "out.jsonl"
    link.symlink_to(tmp_path / "real" / "file.jsonl")
    with AtomicFile(link) as file:
        file.write(b"x")
    assert link.is_symlink()
    assert (tmp_path / "real" / "file.jsonl").read_bytes() == b"x"


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path, tmp_path / "pipe.jsonl", Path("/dev/null")):
        with pytest.raises(OutputError, match="is not a regular file"):
            AtomicFile(path)


def test_a_name_of_the_longest_length_has_room_for_its_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 124 + ".jsonl")
    with AtomicFile(path) as file:
        file.write(b"x")
    assert path.read_bytes() == b"x"


def test_a_folder_that_cannot_be_made_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "out.jsonl"
    with pytest.raises(StorageError) as caught:
        AtomicFile(path)
    assert caught.value.message == f"cannot write {path}: Not a directory"


def test_temporaries_of_killed_runs_are_removed_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for name in (
        ".out.jsonl.123-0123abcd.tmp",
        ".out.jsonl.9-ffffffff.tmp",
        ".out.jsonl.gz.123-0123abcd.tmp",
        ".out.jsonl.tmp",
        "out.jsonl.123-0123abcd.tmp",
        "out.jsonl",
    ):
        (tmp_path / name).write_text("")
    remove_stale_temporaries(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        ".out.jsonl.gz.123-0123abcd.tmp",
        ".out.jsonl.tmp",
        "out.jsonl",
        "out.jsonl.123-0123abcd.tmp",
    ]
    remove_stale_temporaries(tmp_path / "missing" / "out.jsonl")


def test_stale_temporaries_are_found_by_the_names_that_are_given(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "out.jsonl")
    remove_stale_temporaries(tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == []
    file.abort()


def test_json_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.summary.json"
    write_json_atomically(path, {"text": "é\ud83d", "num_rows": 3})
    assert json.loads(path.read_bytes()) == {"text": "é\ud83d", "num_rows": 3}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json_atomically(path, float("nan"))
    assert json.loads(path.read_bytes()) == {"text": "é\ud83d", "num_rows": 3}


def test_too_little_free_space_says_how_much_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "out.jsonl"
    require_free_bytes(path, 1)
    with pytest.raises(StorageError) as caught:
        require_free_bytes(path, 10**18)
    assert caught.value.message.startswith(
        f"cannot write {path}: it needs about 1,000,000,000,000,000,000 bytes; "
    )
    assert caught.value.hint == "free space on that file system, then run the same line again"


@pytest.mark.parametrize(
    ("error", "message", "hint_word"),
    [
        (OSError(errno.ENOSPC, "x"), "cannot write out: No space left on device", "free space"),
        (OSError(errno.EDQUOT, "x"), "cannot write out: Disk quota exceeded", "quota"),
        (OSError(errno.EROFS, "x"), "cannot write out: Read-only file system", "another output"),
        (OSError("no number"), "cannot write out: no number", "same line again"),
        (MemoryError(), "cannot write out: MemoryError", "same line again"),
    ],
)
def test_every_failed_write_has_a_reason_and_a_hint(
    error: Exception, message: str, hint_word: str
) -> None:
    result = storage_error("out", error)
    assert result.message == message
    assert hint_word in str(result.hint)


FILL_A_LIMITED_DISK = """
import resource, sys
from pathlib import Path
from nanobatch.errors import StorageError
from nanobatch.io.durable import AtomicFile

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
chunk = b"x" * int(sys.argv[2])
try:
    with AtomicFile(Path(sys.argv[1])) as file:
        for _ in range((3 << 19) // len(chunk)):
            file.write(chunk)
except StorageError as error:
    print(error.message)
"""


@pytest.mark.parametrize("chunk_bytes", [1000, 3 << 19])
def test_a_full_disk_names_the_path_and_leaves_nothing(tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "out.jsonl"
    finished = subprocess.run(
        [sys.executable, "-c", FILL_A_LIMITED_DISK, str(path), str(chunk_bytes)],
        env=os.environ | {"PYTHONPATH": SOURCE_FOLDER},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert finished.stdout == f"cannot write {path}: File too large\n"
    assert list(tmp_path.iterdir()) == []
