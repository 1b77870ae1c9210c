"""One segment file of a journal: its name, its header, the records found in it.

Knows where records are and which bytes are no records; not what a damaged range means for the
journal (`nanobatch.io.journal` decides between a tail and damage in the middle).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nanobatch.errors import JournalError
from nanobatch.io.durable import AtomicFile
from nanobatch.io.journal_record import MAGIC, RecordHeader, check_record

SEGMENT_HEADER = b"nanobatch journal 2\n"
READ_BYTES = 1 << 20

_NAME = re.compile(r"segment-(\d{6,})\.journal")
_ANY_HEADER = re.compile(rb"nanobatch journal (\d+)\n")

FoundRecord = tuple[int, RecordHeader, bytes]
"""Offset in the segment, header, and the whole record."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of a segment, `end` excluded."""

    start: int
    end: int


def segment_path(folder: Path, number: int) -> Path:
    """Return where a segment lies; numbers begin at 1."""
    return folder / f"segment-{number:06d}.journal"


def segment_numbers(folder: Path) -> list[int]:
    """Return the numbers of the segments in a folder, in order; other files are ignored."""
    if not folder.is_dir():
        return []
    matches = (_NAME.fullmatch(entry.name) for entry in folder.iterdir())
    return sorted(int(match.group(1)) for match in matches if match is not None)


def journal_bytes(folder: Path) -> int:
    """Return the bytes of all segments, which is about what an output of the same rows takes."""
    return sum(segment_path(folder, number).stat().st_size for number in segment_numbers(folder))


class SegmentScan:
    """Walks a segment and yields every valid record; what lies between is collected as damage.

    After a byte that starts no valid record the scan goes on at the next magic whose record's
    checksum holds. Holds about `READ_BYTES`, or the longest record.

    Args:
        path: The file.
        max_bytes: Where to stop in a file that somebody is writing; None reads to its end.

    Attributes:
        path: The file.
        damage: Ranges that hold no valid record, complete once the iteration has ended.
        end: Offset after the last valid record, or after the header if there is none.
        num_records: Valid records so far.
    """

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self.damage: list[ByteRange] = []
        self.end = 0
        self.num_records = 0
        self._buffer = b""
        self._base = 0  # offset in the file of the buffer's first byte
        self._place = 0  # in the buffer

    def __iter__(self) -> Iterator[FoundRecord]:
        """Yield (offset, header, record) in order of the file.

        Raises:
            JournalError: Another version of nanobatch wrote the segment.
            OSError: The file cannot be read.
        """
        with self.path.open("rb", buffering=0) as stream:
            self._refill(stream, len(SEGMENT_HEADER))
            self._skip_header()
            while (found := self._next_record(stream)) is not None:
                yield found

    def _skip_header(self) -> None:
        if self._buffer.startswith(SEGMENT_HEADER):
            self._place = self.end = len(SEGMENT_HEADER)
            return
        other = _ANY_HEADER.match(self._buffer)
        if other is not None:
            raise JournalError(
                f"{self.path} is of journal version {int(other.group(1))}; "
                f"this nanobatch reads version 2",
                hint="finish the job with the nanobatch that began it",
            )

    def _next_record(self, stream: BinaryIO) -> FoundRecord | None:
        damage_start: int | None = None
        while True:
            header, num_bytes = check_record(self._buffer, self._place)
            offset = self._base + self._place
            if header is not None:
                self._note_damage(damage_start, offset)
                end = self._place + num_bytes
                record = self._buffer[self._place : end]
                self._place = end
                self.end = offset + num_bytes
                self.num_records += 1
                return offset, header, record
            if self._place + num_bytes > len(self._buffer) and self._refill(stream, num_bytes):
                continue
            if self._place == len(self._buffer):
                self._note_damage(damage_start, offset)
                return None
            damage_start = offset if damage_start is None else damage_start
            self._skip_to_magic()

    def _note_damage(self, start: int | None, end: int) -> None:
        if start is not None:
            self.damage.append(ByteRange(start, end))

    def _skip_to_magic(self) -> None:
        found = self._buffer.find(MAGIC, self._place + 1)
        if found >= 0:
            self._place = found
        else:  # the magic may be cut by the buffer's end
            self._place = max(self._place + 1, len(self._buffer) - len(MAGIC) + 1)

    def _refill(self, stream: BinaryIO, num_bytes: int) -> bool:
        """Drop the buffer before the place and read on until it holds at least `num_bytes`.

        Returns:
            Whether the file had more.
        """
        pieces = [self._buffer[self._place :]]
        self._base += self._place
        self._place = 0
        num_wanted = max(READ_BYTES, num_bytes - len(pieces[0]))
        if self._max_bytes is not None:
            num_wanted = min(num_wanted, self._max_bytes - self._base - len(pieces[0]))
        while num_wanted > 0 and (piece := stream.read(num_wanted)):
            pieces.append(piece)
            num_wanted -= len(piece)
        self._buffer = b"".join(pieces)
        return len(pieces) > 1


def rewrite_without_damage(path: Path) -> None:
    """Replace a segment by one that holds its valid records only, in their order.

    Raises:
        JournalError: Another version of nanobatch wrote the segment.
        StorageError: The new file cannot be written; the old one stays.
        OSError: The file cannot be read.
    """
    with AtomicFile(path) as file:
        file.write(SEGMENT_HEADER)
        for _, _, record in SegmentScan(path):
            file.write(record)
