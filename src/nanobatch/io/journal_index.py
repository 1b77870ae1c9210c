"""Where the last record of each row lies: 8 bytes a row, whatever a job's size.

Knows positions and how to read records back in near-sequential time; not who writes them. A
position packs a segment number and an offset into one integer; 0 is no position, as segments are
numbered from 1. Chunks of the table are allocated as rows come, so growing copies nothing.
"""

import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from nanobatch.errors import JournalError
from nanobatch.io.journal_blocks import OFFSET_BITS, OFFSET_MASK, RecordBlocks
from nanobatch.io.journal_counts import JournalCounts, JournalTally
from nanobatch.io.journal_record import (
    HEADER_BYTES,
    JournalRecord,
    RecordFlags,
    RecordPortion,
    decode_portion,
    decode_record,
    first_damaged,
    is_intact,
    read_header,
    read_headers,
)
from nanobatch.io.journal_segment import FoundRecord, segment_path
from nanobatch.request import ErrorCode

MAX_PORTION_BYTES = 1 << 20
"""Bytes of records that are decoded together; one that is longer comes alone."""

REPAIR_HINT = "`--repair-journal` keeps every valid record and runs the other rows again"

_ROWS_PER_CHUNK_LOG2 = 14
_PLACE_MASK = (1 << _ROWS_PER_CHUNK_LOG2) - 1
_ERROR = int(RecordFlags.ERROR)


class JournalIndex:
    """The finished rows of a journal, from `open_journal`; a `JournalWriter` keeps it up to date.

    Thread-safe: the writer's thread adds records while others read.

    Attributes:
        folder: The journal's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._chunks: dict[int, array[int]] = {}
        self._tally = JournalTally()
        self._blocks = RecordBlocks(folder)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.counts.num_rows

    @property
    def counts(self) -> JournalCounts:
        """Counts over all finished rows; a row recorded twice counts as its last record."""
        with self._lock:
            return self._tally.snapshot()

    def has(self, row_index: int) -> bool:
        """Return whether a record of the row is written."""
        chunk = self._chunks.get(row_index >> _ROWS_PER_CHUNK_LOG2)
        return chunk is not None and chunk[row_index & _PLACE_MASK] != 0

    def has_any(self, first: int, last: int) -> bool:
        """Return whether a record of any of the rows from first to last is written."""
        if first >> _ROWS_PER_CHUNK_LOG2 != last >> _ROWS_PER_CHUNK_LOG2:
            return any(map(self.has, range(first, last + 1)))
        chunk = self._chunks.get(first >> _ROWS_PER_CHUNK_LOG2)
        return chunk is not None and any(chunk[first & _PLACE_MASK : (last & _PLACE_MASK) + 1])

    def first_missing(self, row_indices: Sequence[int]) -> int | None:
        """Return the place of the first row that has no record, or None."""
        has = list(map(self.has, row_indices))
        return has.index(False) if False in has else None

    def payload_hash(self, row_index: int) -> int:
        """Return the hash of the input row that the row's record answers.

        Raises:
            KeyError: The row has no record.
            JournalError: The record is not what was found when the journal was opened.
        """
        return read_header(self._read_bytes(row_index)).payload_hash

    def segment(self, row_index: int) -> int:
        """Return the number of the segment that holds the row's last record.

        Raises:
            KeyError: The row has no record.
        """
        return self._position(row_index) >> OFFSET_BITS

    def is_error(self, row_index: int) -> bool:
        """Return whether the row's record is an error; raises as `payload_hash`."""
        return bool(read_header(self._read_bytes(row_index)).flags & _ERROR)

    def read(self, row_index: int) -> JournalRecord:
        """Return the row's last record; raises as `payload_hash`. Fastest in row order."""
        return decode_record(self._read_bytes(row_index))

    def read_portions(self, row_indices: Sequence[int]) -> Iterator[RecordPortion]:
        """Yield the last records of rows, as many at a time as `MAX_PORTION_BYTES` hold.

        Costs a quarter of what `read` does for each.

        Args:
            row_indices: The rows; raises for them as `payload_hash` does.
        """
        positions = self._positions(row_indices)
        first = 0
        while first < len(positions):
            with self._lock:
                records = self._blocks.read_records(
                    islice(positions, first, None), max_bytes=MAX_PORTION_BYTES
                )
            damaged = first_damaged(records)
            if damaged is not None:
                raise self._damage(positions[first + damaged])
            first += len(records)
            yield decode_portion(records)

    def add_all(self, segment: int, found: Iterable[FoundRecord]) -> None:
        """Note records that are written in a segment; a later record of a row wins."""
        with self._lock:
            for offset, header, record in found:
                chunk = self._chunk(header.row_index)
                place = header.row_index & _PLACE_MASK
                if chunk[place]:
                    self._forget(chunk[place])
                chunk[place] = segment << OFFSET_BITS | offset
                code = _error_code(record) if header.flags & _ERROR else None
                self._tally.add(header, code)

    def add_written(self, segment: int, offset: int, records: Sequence[bytes]) -> None:
        """Note records that lie one after the other in a segment, from an offset on.

        The same as `add_all`, at a tenth of the cost where all rows are new.
        """
        headers = read_headers(records)
        sizes = headers["payload_bytes"].astype(np.int64) + HEADER_BYTES
        offsets = offset + np.cumsum(sizes) - sizes
        rows = headers["row_index"].astype(np.int64)
        errors = np.flatnonzero(headers["flags"] & _ERROR)
        with self._lock:
            if self._place_new(rows, segment << OFFSET_BITS | offsets):
                self._tally.add_all(
                    headers, [_error_code(records[place]) for place in errors.tolist()]
                )
                return
        self.add_all(
            segment,
            zip(offsets.tolist(), map(read_header, records), records, strict=True),
        )

    def _place_new(self, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> bool:
        """Set the positions of rows unless one of them has a position or stands there twice."""
        keys = rows >> _ROWS_PER_CHUNK_LOG2
        pieces = []
        for key in np.unique(keys).tolist():
            is_here = keys == key
            table = np.frombuffer(self._chunk(key << _ROWS_PER_CHUNK_LOG2), np.int64)
            pieces.append((table, rows[is_here] & _PLACE_MASK, positions[is_here]))
        has_twice = len(np.unique(rows)) < len(rows)
        if has_twice or any(table[places].any() for table, places, _ in pieces):
            return False
        for table, places, here in pieces:
            table[places] = here
        return True

    def close(self) -> None:
        """Close the segments that were read; reading again reopens them."""
        with self._lock:
            self._blocks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _chunk(self, row_index: int) -> "array[int]":
        key = row_index >> _ROWS_PER_CHUNK_LOG2
        chunk = self._chunks.get(key)
        if chunk is None:
            # Repeating allocates exactly; filling from bytes or a list allocates a 16th more.
            chunk = self._chunks[key] = array("q", [0]) * (1 << _ROWS_PER_CHUNK_LOG2)
        return chunk

    def _forget(self, position: int) -> None:
        record = self._read_at(position)
        header = read_header(record)
        self._tally.remove(header, _error_code(record) if header.flags & _ERROR else None)

    def _position(self, row_index: int) -> int:
        chunk = self._chunks.get(row_index >> _ROWS_PER_CHUNK_LOG2)
        position = 0 if chunk is None else chunk[row_index & _PLACE_MASK]
        if not position:
            raise KeyError(row_index)
        return position

    def _positions(self, row_indices: Sequence[int]) -> Sequence[int]:
        """Return the positions of rows, those of neighbours all at once."""
        first, last = row_indices[0], row_indices[-1]
        place = first & _PLACE_MASK
        chunk = self._chunks.get(first >> _ROWS_PER_CHUNK_LOG2)
        are_neighbours = list(row_indices) == list(range(first, last + 1))
        if chunk is not None and are_neighbours and place + len(row_indices) <= len(chunk):
            positions = chunk[place : place + len(row_indices)]
            if 0 not in positions:
                return positions
        return list(map(self._position, row_indices))

    def _read_bytes(self, row_index: int) -> bytes:
        position = self._position(row_index)
        with self._lock:
            return self._read_at(position)

    def _read_at(self, position: int) -> bytes:
        record = self._blocks.read_record(position)
        if not is_intact(record):
            raise self._damage(position)
        return record

    def _damage(self, position: int) -> JournalError:
        path = segment_path(self.folder, position >> OFFSET_BITS)
        offset = position & OFFSET_MASK
        return JournalError(f"{path} is damaged at byte {offset:,}", hint=REPAIR_HINT)


def _error_code(record: bytes) -> ErrorCode:
    errors = (output.error for output in decode_record(record).outputs)
    return next(error.code for error in errors if error is not None)
