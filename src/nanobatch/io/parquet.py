"""Parquet: rows in small batches, with bounded memory whatever the row groups are.

Knows files, batches and rows; how values become Python's is `arrow_values`' part, and what
columns mean that of `rows`.
"""

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from nanobatch.errors import InputError
from nanobatch.io.arrow_values import python_values
from nanobatch.io.input_row import Fields, InputRow
from nanobatch.io.input_source import InputSource, read_failure
from nanobatch.io.jsonl import invalid_utf8
from nanobatch.request import RowError, RowIndex

BUFFER_BYTES = 1 << 20
MAX_BATCH_BYTES = 1 << 20
MAX_BATCH_ROWS = 256


class ParquetRow(InputRow):
    """A row of a record batch; its payload is the batch, its place there and its values."""

    __slots__ = ("_batch", "_place", "_values")

    def __init__(
        self, row_index: RowIndex, source: InputSource, line: int, offset_bytes: int
    ) -> None:
        super().__init__(row_index, source, line, offset_bytes)
        self._batch: pa.RecordBatch | None = None
        self._place = 0
        self._values: Fields = {}

    def hold(self, batch: pa.RecordBatch, place: int, values: Fields) -> "ParquetRow":
        """Set what the row consists of and return it."""
        self._batch = batch
        self._place = place
        self._values = values
        return self

    @property
    def payload_hash(self) -> int:
        """xxh3 of the row's names and values as Python shows them, 64 bits."""
        return xxh3_64_intdigest(repr(self._values).encode())

    @property
    def arrow_row(self) -> tuple[pa.RecordBatch, int] | None:
        """The record batch that holds the row, and its place there."""
        return None if self._batch is None else (self._batch, self._place)

    def _decode(self) -> Fields | RowError:
        for value in self._values.values():
            if isinstance(value, UnicodeDecodeError):
                return invalid_utf8(value)
        return self._values


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
            for batch in _batches_from(source, num_skipped):
                for place, values in enumerate(_batch_rows(batch)):
                    row_index = RowIndex(first_index + row_number)
                    row_number += 1
                    offset_bytes = base_offset_bytes + size_bytes * row_number // num_rows
                    row = ParquetRow(row_index, source, row_number, offset_bytes)
                    yield row.hold(batch, place, values)
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


def _batch_rows(batch: pa.RecordBatch) -> Iterator[Fields]:
    names = batch.schema.names
    if not names:
        return iter([{} for _ in range(batch.num_rows)])
    columns = [python_values(column) for column in batch.columns]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
