"""Opening a journal: all finished rows back after a crash.

Knows segments, tails and damage; not what a job is, nor how records get there
(`nanobatch.io.journal_writer`). `OUTPUT.nanobatch/` holds append-only
segments, one per run that recorded a row. A run never writes into an older segment (it only cuts
a torn tail when it opens the journal): a run that lost its output to another one can spoil
nothing but its own segment, and creating a segment exclusively keeps two runs apart.

Any prefix of the segments' bytes, in order of their numbers, is a valid journal.
"""

import os
from contextlib import ExitStack
from pathlib import Path

from nanobatch.errors import JournalError
from nanobatch.io.durable import fsync_folder, storage_error
from nanobatch.io.journal_index import REPAIR_HINT, JournalIndex
from nanobatch.io.journal_segment import (
    SegmentScan,
    rewrite_without_damage,
    segment_numbers,
    segment_path,
)


def open_journal(folder: Path, *, repair: bool = False, read_only: bool = False) -> JournalIndex:
    """Find every finished row of a journal; a folder that does not exist has none.

    Verifies every checksum. Damage with nothing valid after it is the tail of a killed run and is
    cut off, durably. Holds 8 bytes a row.

    Args:
        folder: The journal's folder.
        repair: Remove damage in the middle, keeping every valid record.
        read_only: Change nothing, for who does not hold the lock: a tail is passed over and not
            cut, since it may be a record that a run is about to end.

    Raises:
        JournalError: There is damage before the last valid record, or a segment is missing, and
            `repair` is false; or a segment cannot be read or is of another version.
        StorageError: The tail cannot be cut, or the repaired journal cannot be written.
    """
    assert not (repair and read_only), "a repair writes"
    if repair:
        _repair(folder)
    numbers = segment_numbers(folder)
    for expected, number in enumerate(numbers, 1):
        if number != expected:
            raise JournalError(f"{segment_path(folder, expected)} is missing", hint=REPAIR_HINT)
    with ExitStack() as on_failure:
        index = on_failure.enter_context(JournalIndex(folder))
        scans = [_scan_into(index, number) for number in numbers]
        _require_undamaged_middle(scans)
        if not read_only:
            _cut_tail(scans)
        on_failure.pop_all()
    return index


def _scan_into(index: JournalIndex, number: int) -> SegmentScan:
    path = segment_path(index.folder, number)
    try:
        # What is appended while this reads is left alone: the half of a record would be taken for
        # damage once records follow it.
        scan = SegmentScan(path, max_bytes=path.stat().st_size)
        index.add_all(number, scan)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    return scan


def _require_undamaged_middle(scans: list[SegmentScan]) -> None:
    """Check that no damage lies before the last valid record of the whole journal."""
    last = max((place for place, scan in enumerate(scans) if scan.num_records), default=-1)
    for place, scan in enumerate(scans[: last + 1]):
        for damage in scan.damage:
            if place < last or damage.start < scan.end:
                raise JournalError(
                    f"{scan.path} is damaged at byte {damage.start:,} "
                    f"({damage.end - damage.start:,} bytes), with valid records after it",
                    hint=REPAIR_HINT,
                )


def _cut_tail(scans: list[SegmentScan]) -> None:
    """Remove what follows the last valid record, and segments that hold no record at the end."""
    while scans and not scans[-1].num_records:
        _remove(scans.pop().path)
    if scans and scans[-1].damage:
        _truncate(scans[-1].path, scans[-1].end)


def _remove(path: Path) -> None:
    try:
        path.unlink()
        fsync_folder(path.parent)
    except OSError as error:
        raise storage_error(path, error) from error


def _truncate(path: Path, num_bytes: int) -> None:
    try:
        with path.open("r+b", buffering=0) as stream:
            stream.truncate(num_bytes)
            os.fsync(stream.fileno())
    except OSError as error:
        raise storage_error(path, error) from error


def _repair(folder: Path) -> None:
    """Rewrite damaged segments without their damage and number all without gaps."""
    for expected, number in enumerate(segment_numbers(folder), 1):
        path = segment_path(folder, number)
        scan = SegmentScan(path)
        try:
            for _ in scan:
                pass
            if scan.damage:
                rewrite_without_damage(path)
            if number != expected:
                path.rename(segment_path(folder, expected))
                fsync_folder(folder)
        except OSError as error:
            raise storage_error(path, error) from error
