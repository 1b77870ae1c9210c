"""Parquet: rows in small batches, with bounded memory whatever the row groups are.

Knows files, batches and rows; how values become Python's is `arrow_values`' part, and what
columns mean that of `rows`.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from nanobatch.errors import InputError
from nanobatch.io.arrow_values import python_values
from nanobatch.io.input_row import NO_FLAWS, Columns, Fields, InputRow
from nanobatch.io.input_source import InputSource, read_failure
from nanobatch.io.jsonl import invalid_utf8
from nanobatch.request import RowError, RowIndex

BUFFER_BYTES = 1 << 20
MAX_BATCH_BYTES = 1 << 20
MAX_BATCH_ROWS = 512


_HALF = np.uint64(32)
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio


class _Batch:
    """The rows of a record batch as Python objects.

    Attributes:
        arrow: The record batch.
        names: Its columns.
        num_rows: Its rows.
        has_bad_text: Whether some text is no UTF-8.
    """

    def __init__(self, arrow: pa.RecordBatch) -> None:
        self.arrow = arrow
        self.num_rows: int = arrow.num_rows
        self.names: tuple[str, ...] = tuple(arrow.schema.names)
        self._columns = [python_values(column) for column in arrow.columns]
        self.has_bad_text = any(
            UnicodeDecodeError in set(map(type, column)) for column in self._columns
        )

    def column(self, name: str) -> list[object]:
        """Return the values of a column."""
        return self._columns[self.names.index(name)]

    @cached_property
    def fields(self) -> list[Fields | RowError]:
        """The fields of each row, or why it has none."""
        names, columns = self.names, self._columns
        if not columns:
            return [{} for _ in range(self.arrow.num_rows)]
        if self.has_bad_text:
            return [_decodable_fields(names, values) for values in zip(*columns, strict=True)]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    @cached_property
    def hashes(self) -> list[int]:
        """A hash of each row's names and values, 64 bits: the same whatever the other rows are."""
        seed = xxh3_64_intdigest(repr(self.names).encode())
        hashes = np.full(self.arrow.num_rows, seed, np.uint64)
        for column in self._columns:
            # Multiplying by an odd number loses nothing; shifting lets high bits reach low ones.
            mixed = (hashes ^ (hashes >> _HALF)) * _ODD
            hashes = mixed + np.array(_value_hashes(column), np.uint64)
        result: list[int] = hashes.tolist()
        return result


class ParquetRow(InputRow):
    """A row of a record batch; its payload is its names and values."""

    __slots__ = ("_batch", "_place")

    def __init__(
        self,
        row_index: RowIndex,
        source: InputSource,
        line: int,
        offset_bytes: int,
        batch: _Batch,
        place: int,
    ) -> None:
        # Not left to the class above: a call more would be a third of what a row costs.
        self.row_index = row_index
        self.source = source
        self.line = line
        self.offset_bytes = offset_bytes
        self.num_surrogates = 0
        self.flaws = NO_FLAWS
        self._fields = None
        self._batch = batch
        self._place = place

    @property
    def payload_hash(self) -> int:
        """Hash of the row's names and values, 64 bits."""
        return self._batch.hashes[self._place]

    @property
    def arrow_row(self) -> tuple[pa.RecordBatch, int]:
        """The record batch that holds the row, and its place there."""
        return self._batch.arrow, self._place

    @property
    def columns(self) -> tuple[Columns, int] | None:
        """The columns that the row shares with others; see `InputRow.columns`."""
        return None if self._batch.has_bad_text else (self._batch, self._place)

    def _decode(self) -> Fields | RowError:
        return self._batch.fields[self._place]


def _decodable_fields(names: Sequence[str], values: tuple[object, ...]) -> Fields | RowError:
    for value in values:
        if isinstance(value, UnicodeDecodeError):
            return invalid_utf8(value)
    return dict(zip(names, values, strict=True))


def _value_hashes(values: list[object]) -> list[int]:
    """Return the hash of each text's bytes, of other values as Python shows them."""
    return [
        xxh3_64_intdigest(value.encode())
        if type(value) is str
        else xxh3_64_intdigest(repr(value).encode(), 1)
        for value in values
    ]


def sniff_parquet(source: InputSource) -> InputSource:
    """Read the footer and return the source with its schema and number of rows.

    Raises:
        InputError: The file is empty, no Parquet, damaged, or names a column twice.
        OSError: The file cannot be read.
    """
    if source.size_bytes == 0:
        raise InputError(
            f"{source.name} is empty (0 bytes); a Parquet file has a footer",
            hint="a file that was cut while it was written has none; write it again",
        )
    try:
        with _open(source) as file:
            schema, num_rows = file.schema_arrow, file.metadata.num_rows
    except pa.ArrowException as error:
        raise InputError(
            f"{source.name} is not a readable Parquet file: {_first_line(error)}",
            hint="a file that was cut while it was written has no footer",
        ) from None
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{source.name} has two columns named {twice!r}", hint="rename one")
    return replace(source, columns=tuple(schema.names), num_rows=num_rows, arrow_schema=schema)


def iter_parquet(
    source: InputSource, *, first_index: int, start: int, base_offset_bytes: int
) -> Generator[InputRow, None, int]:
    """Yield every row; see `readers.RowReader`. Bytes read are taken in proportion to rows.

    Row groups before `start` are not read at all.
    """
    num_rows = source.num_rows or 0
    size_bytes = source.size_bytes or 0
    num_skipped = min(max(0, start - first_index), num_rows)
    row_number = num_skipped
    try:
        if num_skipped < num_rows:
            for arrow in _batches_from(source, num_skipped):
                batch = _Batch(arrow)
                yield from [
                    ParquetRow(
                        RowIndex(first_index + row_number + place),
                        source,
                        row_number + place + 1,
                        base_offset_bytes + size_bytes * (row_number + place + 1) // num_rows,
                        batch,
                        place,
                    )
                    for place in range(arrow.num_rows)
                ]
                row_number += arrow.num_rows
    except (pa.ArrowException, OSError) as error:
        offset_bytes = size_bytes * row_number // max(num_rows, 1)
        raise read_failure(source, offset_bytes, error) from error
    return first_index + num_rows


def count_parquet(source: InputSource) -> int:
    """Return the number of rows, which sniffing found; see `readers.RowCounter`."""
    return source.num_rows or 0


@contextmanager
def _open(source: InputSource) -> Iterator[pq.ParquetFile]:
    # pre_buffer (Arrow's default) would hold the whole file; without buffer_size a column chunk.
    with (
        source.open_file() as file,
        pq.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER_BYTES) as parquet_file,
    ):
        yield parquet_file


def _batches_from(source: InputSource, start: int) -> Iterator[pa.RecordBatch]:
    """Yield batches whose first row is row `start` of the file."""
    with _open(source) as file:
        metadata = file.metadata
        num_skipped = start
        row_groups = deque(range(metadata.num_row_groups))
        while num_skipped >= metadata.row_group(row_groups[0]).num_rows:
            num_skipped -= metadata.row_group(row_groups.popleft()).num_rows
        batches = file.iter_batches(
            batch_size=_num_batch_rows(metadata), row_groups=list(row_groups)
        )
        for batch in batches:
            if num_skipped < batch.num_rows:
                yield batch.slice(num_skipped)
            num_skipped = max(0, num_skipped - batch.num_rows)


def _num_batch_rows(metadata: pq.FileMetaData) -> int:
    """Return how many rows make a batch of about `MAX_BATCH_BYTES`."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    num_bytes_per_row = max(
        (group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0
    )
    return max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // max(num_bytes_per_row, 1)))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
