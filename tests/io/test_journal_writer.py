import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import nanobatch
from nanobatch.errors import StorageError
from nanobatch.io.journal import open_journal
from nanobatch.io.journal_record import JournalRecord, encode_record
from nanobatch.io.journal_segment import SEGMENT_HEADER
from nanobatch.io.journal_writer import MAX_PENDING_BYTES, JournalWriter
from tests.io.output_strategies import record

SOURCE_FOLDER = str(Path(nanobatch.__file__).parent.parent)


def wait_until_row_is_written(folder: Path, row_index: int, *, timeout_s: float) -> float:
    started_s = time.monotonic()
    while time.monotonic() - started_s < timeout_s:
        if open_journal_without_cutting(folder, row_index):
            return time.monotonic() - started_s
        time.sleep(0.01)
    return float("inf")


def open_journal_without_cutting(folder: Path, row_index: int) -> bool:
    return any(
        encode_record(record(row_index)) in path.read_bytes() for path in folder.glob("*.journal")
    )


def test_a_record_is_in_the_file_within_a_second_without_a_flush(tmp_path: Path) -> None:
    index = open_journal(tmp_path)
    with JournalWriter(index) as writer:
        writer.append(record(0))
        assert wait_until_row_is_written(tmp_path, 0, timeout_s=5.0) < 1.0
        writer.append(record(1))
        assert wait_until_row_is_written(tmp_path, 1, timeout_s=5.0) < 1.0


def test_a_written_record_is_fsynced_without_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        fsync(descriptor)
        synced.set()

    with JournalWriter(open_journal(tmp_path), fsync_interval_s=0.3) as writer:
        monkeypatch.setattr(os, "fsync", watch)
        writer.append(record(0))
        assert wait_until_row_is_written(tmp_path, 0, timeout_s=5.0) < 1.0
        assert synced.wait(timeout=5.0)


def test_after_a_flush_every_record_is_in_the_index_and_the_file(tmp_path: Path) -> None:
    index = open_journal(tmp_path)
    with JournalWriter(index, write_interval_s=3600.0, fsync_interval_s=3600.0) as writer:
        rows = [record(row, f"text {row}") for row in range(500)]
        for row in rows:
            writer.append(row)
        writer.flush()
        assert [index.read(row) for row in range(500)] == rows
        assert writer.path.read_bytes() == SEGMENT_HEADER + b"".join(map(encode_record, rows))


def test_a_flush_without_records_returns(tmp_path: Path) -> None:
    with JournalWriter(open_journal(tmp_path)) as writer:
        writer.flush()
        writer.append(record(0))
        writer.flush()
        writer.flush()


def test_several_threads_may_append_and_read(tmp_path: Path) -> None:
    index = open_journal(tmp_path)
    writer = JournalWriter(index, write_interval_s=0.001)

    def work(first: int) -> None:
        for row in range(first, first + 300):
            writer.append(record(row, str(row)))
            if index.has(first):
                assert index.read(first).outputs[0].text == str(first)

    threads = [threading.Thread(target=work, args=(1000 * place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    with open_journal(tmp_path) as reopened:
        assert len(reopened) == len(index) == 1200


def test_append_waits_for_the_disk_when_too_much_is_pending(tmp_path: Path) -> None:
    index = open_journal(tmp_path)
    large = "x" * (MAX_PENDING_BYTES // 4)
    with JournalWriter(index) as writer:
        for row in range(16):
            writer.append(record(row, large))
            assert writer.pending_bytes <= MAX_PENDING_BYTES * 3 // 2
    assert len(index) == 16


def test_a_second_writer_of_a_journal_takes_another_segment(tmp_path: Path) -> None:
    indexes = [open_journal(tmp_path), open_journal(tmp_path)]
    with JournalWriter(indexes[0]) as one, JournalWriter(indexes[1]) as other:
        one.append(record(0))
        other.append(record(1))
    assert [one.path.name, other.path.name] == [
        "segment-000001.journal",
        "segment-000002.journal",
    ]
    assert len(open_journal(tmp_path)) == 2


def test_close_may_be_called_twice(tmp_path: Path) -> None:
    writer = JournalWriter(open_journal(tmp_path))
    writer.append(record(0))
    writer.close()
    writer.close()
    assert len(open_journal(tmp_path)) == 1


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "journal"
    with pytest.raises(StorageError, match=r"cannot write .*segment-000001\.journal"):
        JournalWriter(open_journal(folder))


def test_whatever_is_raised_by_the_writing_thread_reaches_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([MemoryError("out of memory")])
    fsync = os.fsync

    def fail_once(descriptor: int) -> None:
        for failure in failures:
            raise failure
        fsync(descriptor)

    writer = JournalWriter(open_journal(tmp_path))
    monkeypatch.setattr(os, "fsync", fail_once)
    writer.append(record(0))
    with pytest.raises(StorageError, match="out of memory"):
        writer.flush()
    with pytest.raises(StorageError, match="out of memory"):
        writer.append(record(1))
    with pytest.raises(StorageError, match="out of memory"):
        writer.close()
    writer.close()


def test_the_failure_that_ends_a_with_block_is_raised_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError) as caught, JournalWriter(open_journal(tmp_path)) as writer:
        monkeypatch.setattr(os, "fsync", _no_space)
        writer.append(record(0))
        writer.flush()
    assert caught.value.__context__ is None
    assert "No space left on device" in caught.value.message


def test_a_failure_is_not_hidden_by_another_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError) as caught, JournalWriter(open_journal(tmp_path)) as writer:
        writer.append(record(0))
        monkeypatch.setattr(os, "fsync", _no_space)
        raise KeyboardInterrupt
    assert isinstance(caught.value.__context__, KeyboardInterrupt)


def _no_space(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


FILL_A_LIMITED_DISK = """
import resource, sys
from pathlib import Path
from nanobatch.errors import StorageError
from nanobatch.io.journal import open_journal
from nanobatch.io.journal_writer import JournalWriter
from tests.io.output_strategies import record

resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
writer = JournalWriter(open_journal(Path(sys.argv[1])), write_interval_s=0.0)
try:
    for row in range(100_000):
        writer.append(record(row))
except StorageError as error:
    print(row, error.message, error.hint, sep="|")
try:
    writer.close()
except StorageError as error:
    print("close", error.message, error.hint, sep="|")
"""


def test_a_full_disk_is_an_error_that_names_the_path_and_the_journal_goes_on(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "out.jsonl.nanobatch"
    environment = os.environ | {"PYTHONPATH": f"{SOURCE_FOLDER}:{Path.cwd()}"}
    finished = subprocess.run(
        [sys.executable, "-c", FILL_A_LIMITED_DISK, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    segment = folder / "segment-000001.journal"
    message = f"cannot write {segment}: File too large"
    at_append, at_close = (line.split("|") for line in finished.stdout.splitlines())
    assert at_append[1] == at_close[1] == message
    assert "ulimit -f" in at_append[2]
    left = segment.read_bytes()
    assert 0 < len(left) <= 50_000
    index = open_journal(folder)
    assert segment.read_bytes() == left  # there was no tail to cut
    num_kept = len(index)
    assert num_kept == 50_000 // len(encode_record(record(0)))
    assert num_kept < int(at_append[0])
    assert [index.has(row) for row in range(num_kept + 1)] == [True] * num_kept + [False]
    with JournalWriter(index) as writer:
        for row in range(num_kept, num_kept + 10):
            writer.append(record(row))
    expected: list[JournalRecord] = [record(row) for row in range(num_kept + 10)]
    with open_journal(folder) as reopened:
        assert [reopened.read(row) for row in range(num_kept + 10)] == expected
