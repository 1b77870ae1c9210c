"""Rows that are one line each: JSONL and text.

Knows how lines become rows with their places, and how lines that are not wanted are passed over;
which lines are rows is the format's part.
"""

from collections.abc import Callable, Generator

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
        if row_index + num_rows <= start:
            row_index += num_rows
            line_number += len(lines)
            offset_bytes += 0 if source.codec else sum(map(len, lines)) + len(lines)
            continue
        for line, payload in zip(lines, payloads, strict=True):
            line_number += 1
            if source.codec is None:
                offset_bytes += len(line) + 1
            if payload:
                if row_index >= start:
                    yield kind(RowIndex(row_index), source, line_number, offset_bytes, payload)
                row_index += 1
    return row_index


def count_line_rows(source: InputSource, payloads_of: PayloadsOf) -> int:
    """Return how many lines of an input are rows; see `readers.RowCounter`."""
    num_rows = 0
    for lines in LineReader(source).blocks():
        payloads = payloads_of(lines)
        num_rows += len(payloads) - payloads.count(b"")
    return num_rows
