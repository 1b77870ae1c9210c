"""Records of a journal read in near-sequential time.

Knows segments and offsets; not whether a record is valid, nor which rows there are.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from nanobatch.io.journal_record import HEADER_BYTES, record_bytes
from nanobatch.io.journal_segment import segment_path

BLOCK_BYTES = 1 << 14
NUM_CACHED_BLOCKS = 256
"""Blocks held for reading: 4 MiB, about the spread of records finished within 4,096 rows. Small
blocks, so that a spread that is wider costs a read of 16 KiB per record and not more."""

OFFSET_BITS = 44
OFFSET_MASK = (1 << OFFSET_BITS) - 1
"""A position in a journal is an integer: the segment's number and, in these bits, the offset."""

_MAX_OPEN_SEGMENTS = 16
_START_MASK = BLOCK_BYTES - 1


class RecordBlocks:
    """Reads records through the most recently used blocks of the segments.

    Records lie in order of completion, which is near row order: a few blocks serve all reads.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._descriptors: dict[int, int] = {}

    def read_record(self, position: int) -> bytes:
        """Return the bytes of the record at a position, cut short if the file is."""
        return self.read_records((position,), max_bytes=1)[0]

    def read_records(self, positions: Iterable[int], *, max_bytes: int) -> list[bytes]:
        """Return records from the first on, until they have so many bytes; see `read_record`."""
        records: list[bytes] = []
        num_bytes = 0
        block, block_number = b"", None
        for position in positions:
            number, start = position // BLOCK_BYTES, position & _START_MASK
            if number != block_number:
                block, block_number = self._block(number), number
            end = start + HEADER_BYTES
            if end <= len(block):
                end = start + record_bytes(block, start)
            record = block[start:end] if end <= len(block) else self._record_across(position)
            records.append(record)
            num_bytes += len(record)
            if num_bytes >= max_bytes:
                break
        return records

    def close(self) -> None:
        """Close all files and forget all blocks."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._blocks.clear()

    def _record_across(self, position: int) -> bytes:
        """Return a record that no block holds whole."""
        header = self._read(position, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return header
        return self._read(position, record_bytes(header, 0))

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is not None:
            self._blocks.move_to_end(number)
            return block
        block = self._read(number * BLOCK_BYTES, BLOCK_BYTES)
        if len(block) == BLOCK_BYTES:  # the last block of a segment may still grow
            self._blocks[number] = block
            if len(self._blocks) > NUM_CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        return block

    def _read(self, position: int, num_bytes: int) -> bytes:
        segment = position >> OFFSET_BITS
        descriptor = self._descriptors.get(segment)
        if descriptor is None:
            if len(self._descriptors) >= _MAX_OPEN_SEGMENTS:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            descriptor = os.open(segment_path(self._folder, segment), os.O_RDONLY | os.O_CLOEXEC)
            self._descriptors[segment] = descriptor
        return os.pread(descriptor, num_bytes, position & OFFSET_MASK)
