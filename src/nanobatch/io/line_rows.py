"""Rows that are one line each: JSONL and text.

Knows how lines become rows with their places, and how lines that are not wanted are passed over;
which lines are rows is the format's part.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate, compress, count, islice, repeat
from typing import cast

from nanobatch.io.input_row import InputRow, LineRow
from nanobatch.io.input_source import InputSource
from nanobatch.io.lines import LineReader
from nanobatch.request import RowIndex

PayloadsOf = Callable[[list[bytes]], list[bytes]]
"""Returns what of each line is its row's payload, b"" where the line is no row."""


def iter_line_rows(
    source: InputSource,
    kind: type[LineRow],
    payloads_of: PayloadsOf,
    *,
    first_index: int,
    start: int,
    base_offset_bytes: int,
) -> Generator[InputRow, None, int]:
    """Yield a row for every line that is one, from index `start`; see `readers.RowReader`."""
    reader = LineReader(source)
    row_index, line_number, offset_bytes = first_index, 0, base_offset_bytes
    for lines in reader.blocks():
        payloads = payloads_of(lines)
        num_rows = len(payloads) - payloads.count(b"")
        if source.codec is not None:  # only the file's own bytes count, and they come in chunks
            offset_bytes = base_offset_bytes + reader.num_bytes_read
            offsets = [offset_bytes] * len(lines)
        else:
            offsets = list(accumulate([len(line) + 1 for line in lines], initial=offset_bytes))[1:]
            offset_bytes = offsets[-1]
        if row_index + num_rows > start:
            line_numbers: Sequence[int] = range(line_number + 1, line_number + 1 + len(lines))
            if num_rows < len(lines):
                line_numbers = list(compress(line_numbers, payloads))
                offsets = list(compress(offsets, payloads))
                payloads = [payload for payload in payloads if payload]
            indices = cast("Iterator[RowIndex]", count(row_index))
            rows = map(kind, indices, repeat(source), line_numbers, offsets, payloads)
            yield from islice(rows, max(0, start - row_index), None)
        row_index += num_rows
        line_number += len(lines)
    return row_index


def count_line_rows(source: InputSource, payloads_of: PayloadsOf) -> int:
    """Return how many lines of an input are rows; see `readers.RowCounter`."""
    num_rows = 0
    for lines in LineReader(source).blocks():
        payloads = payloads_of(lines)
        num_rows += len(payloads) - payloads.count(b"")
    return num_rows
