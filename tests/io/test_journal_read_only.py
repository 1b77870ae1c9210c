"""Reading a journal that is somebody else's: nothing changes, and it may grow meanwhile."""

import os
import random
import threading
from pathlib import Path

import pytest

from nanobatch.errors import JournalError
from nanobatch.io.journal import open_journal
from nanobatch.io.journal_record import JournalRecord, encode_record
from nanobatch.io.journal_segment import SEGMENT_HEADER, SegmentScan, segment_path
from tests.io.output_strategies import record

NUM_ROWS = 12
ROWS = [record(row_index, f"text {row_index}") for row_index in range(NUM_ROWS)]
CONTENT = SEGMENT_HEADER + b"".join(map(encode_record, ROWS))


def write_segment(folder: Path, content: bytes, number: int = 1) -> Path:
    path = segment_path(folder, number)
    path.write_bytes(content)
    return path


def read_only(folder: Path) -> list[JournalRecord]:
    with open_journal(folder, read_only=True) as index:
        return [index.read(row) for row in range(NUM_ROWS) if index.has(row)]


def num_whole_records(num_bytes: int) -> int:
    """Return how many records a segment cut to so many bytes holds."""
    ends = [len(SEGMENT_HEADER)]
    for row in ROWS:
        ends.append(ends[-1] + len(encode_record(row)))
    return sum(end <= num_bytes for end in ends[1:])


def test_a_torn_tail_is_passed_over_and_not_cut(tmp_path: Path) -> None:
    rng = random.Random(3)
    for num_bytes in [0, 5, len(CONTENT), *(rng.randrange(len(CONTENT)) for _ in range(60))]:
        path = write_segment(tmp_path, CONTENT[:num_bytes])
        assert read_only(tmp_path) == ROWS[: num_whole_records(num_bytes)]
        assert path.read_bytes() == CONTENT[:num_bytes]


def test_a_folder_that_may_not_be_written_is_read(tmp_path: Path) -> None:
    path = write_segment(tmp_path, CONTENT[:-3])
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert read_only(tmp_path) == ROWS[:-1]
    finally:
        tmp_path.chmod(0o755)


def test_a_segment_without_records_stays(tmp_path: Path) -> None:
    write_segment(tmp_path, CONTENT)
    begun = write_segment(tmp_path, SEGMENT_HEADER[:7], number=2)
    assert read_only(tmp_path) == ROWS
    assert begun.read_bytes() == SEGMENT_HEADER[:7]


def test_damage_in_the_middle_is_named_as_for_a_run(tmp_path: Path) -> None:
    start = len(SEGMENT_HEADER) + len(encode_record(ROWS[0]))
    content = bytearray(CONTENT)
    content[start + 20] ^= 1
    path = write_segment(tmp_path, bytes(content))
    with pytest.raises(JournalError, match=rf"damaged at byte {start:,} ") as caught:
        open_journal(tmp_path, read_only=True)
    assert "--repair-journal" in str(caught.value.hint)
    assert path.read_bytes() == bytes(content)


def test_what_is_appended_after_the_start_of_a_scan_is_not_taken_for_damage(
    tmp_path: Path,
) -> None:
    # Half a record is there when the scan reaches it, the rest and the next come right after.
    cut = len(CONTENT) - len(encode_record(ROWS[-1])) - 9
    path = write_segment(tmp_path, CONTENT[:cut])
    scan = SegmentScan(path, max_bytes=cut)
    found = []
    for offset, header, _ in scan:
        found.append(header.row_index)
        if header.row_index == NUM_ROWS - 3:
            assert offset < cut
            path.write_bytes(CONTENT)
    assert found == list(range(NUM_ROWS - 2))
    assert [(damage.start < cut, damage.end) for damage in scan.damage] == [(True, cut)]


def test_a_journal_can_be_read_again_and_again_while_it_is_written(tmp_path: Path) -> None:
    rows = [record(row_index % NUM_ROWS, "x" * 700) for row_index in range(3000)]
    path = write_segment(tmp_path, SEGMENT_HEADER)
    rng = random.Random(5)

    def write() -> None:
        rest = memoryview(b"".join(map(encode_record, rows)))
        with path.open("ab", buffering=0) as stream:
            while rest:
                rest = rest[os.write(stream.fileno(), rest[: rng.randrange(1, 3000)]) :]

    writer = threading.Thread(target=write)
    writer.start()
    num_rows = [len(read_only(tmp_path))]
    while writer.is_alive():
        num_rows.append(len(read_only(tmp_path)))
    writer.join()
    assert num_rows == sorted(num_rows)
    assert len(read_only(tmp_path)) == NUM_ROWS
