"""Records of a journal read in near-sequential time.

Knows segments and offsets; not whether a record is valid, nor which rows there are.
"""

import os
from collections import OrderedDict
from pathlib import Path

from nanobatch.io.journal_record import HEADER_BYTES, record_bytes
from nanobatch.io.journal_segment import segment_path

BLOCK_BYTES = 1 << 14
NUM_CACHED_BLOCKS = 256
"""Blocks held for reading: 4 MiB, about the spread of records finished within 4,096 rows. Small
blocks, so that a spread that is wider costs a read of 16 KiB per record and not more."""

_MAX_OPEN_SEGMENTS = 16


class RecordBlocks:
    """Reads records through the most recently used blocks of the segments.

    Records lie in order of completion, which is near row order: a few blocks serve all reads.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._descriptors: dict[int, int] = {}
        self._last_key: tuple[int, int] | None = None
        self._last_block = b""

    def read_record(self, segment: int, offset: int) -> bytes:
        """Return the bytes of the record at an offset, cut short if the file is."""
        key = (segment, offset // BLOCK_BYTES)
        block = self._last_block if key == self._last_key else self._block(key)
        start = offset % BLOCK_BYTES
        if start + HEADER_BYTES <= len(block):
            end = start + record_bytes(block, start)
            if end <= len(block):
                return block[start:end]
        header = self._read(segment, offset, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return header
        return self._read(segment, offset, record_bytes(header, 0))

    def close(self) -> None:
        """Close all files and forget all blocks."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._blocks.clear()
        self._last_key = None

    def _block(self, key: tuple[int, int]) -> bytes:
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        else:
            segment, number = key
            block = self._read(segment, number * BLOCK_BYTES, BLOCK_BYTES)
            if len(block) < BLOCK_BYTES:  # the last block of a segment may still grow
                return block
            self._blocks[key] = block
            if len(self._blocks) > NUM_CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        self._last_key, self._last_block = key, block
        return block

    def _read(self, segment: int, offset: int, num_bytes: int) -> bytes:
        descriptor = self._descriptors.get(segment)
        if descriptor is None:
            if len(self._descriptors) >= _MAX_OPEN_SEGMENTS:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            descriptor = os.open(segment_path(self._folder, segment), os.O_RDONLY | os.O_CLOEXEC)
            self._descriptors[segment] = descriptor
        return os.pread(descriptor, num_bytes, offset)
