"""Parquet out: an explicit schema, bounded memory.

Knows how many rows become a batch; `output_batch` makes its columns, `row_groups` the file.
"""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pyarrow as pa

from nanobatch.io.columns import OutputColumns
from nanobatch.io.output_batch import BatchBuilder
from nanobatch.io.output_lines import OutputLines, lines_of_rows
from nanobatch.io.output_row import OutputRow
from nanobatch.io.output_writer import OutputWriter
from nanobatch.io.row_groups import RowGroupWriter

MAX_BATCH_LINES = 512
MAX_BATCH_BYTES = 1 << 20
"""About the bytes of text that become a batch: Python objects until then, and of the input's own
columns so few that none with 32-bit offsets overflows, also where samples repeat them."""


class ParquetWriter(OutputWriter):
    """Writes a `.parquet` file (zstd) that appears complete or not at all.

    Args:
        path: Where the file appears.
        columns: Its columns.
        metadata: Keys and values for the file's metadata.
    """

    def __init__(self, path: Path, columns: OutputColumns, *, metadata: Mapping[str, str]) -> None:
        schema = columns.schema.with_metadata(
            {key.encode(): value.encode() for key, value in metadata.items()}
        )
        self._builder = BatchBuilder(columns)
        self._rows: list[OutputRow] = []
        self._row_groups = RowGroupWriter(path, schema)

    def write(self, row: OutputRow) -> None:
        """Add a row with all its outputs; see `OutputWriter.write`."""
        self._rows.append(row)
        if len(self._rows) >= MAX_BATCH_LINES:
            self._end_rows()

    def write_lines(self, lines: OutputLines) -> None:
        """Add lines; see `OutputWriter.write_lines`."""
        self._end_rows()
        start = num_bytes = 0
        if len(lines) > MAX_BATCH_LINES or _may_be_large(lines):
            sizes = _sizes_bytes(lines)
            for stop, size_bytes in enumerate(sizes, 1):
                num_bytes += size_bytes
                if num_bytes >= MAX_BATCH_BYTES or stop - start >= MAX_BATCH_LINES:
                    self._row_groups.write(self._builder.build(lines.part(start, stop)))
                    start, num_bytes = stop, 0
            lines = lines.part(start, len(lines))
        if len(lines):
            self._row_groups.write(self._builder.build(lines))

    def close(self) -> None:
        """Write what is left and the footer; see `OutputWriter.close`."""
        try:
            self._end_rows()
        except BaseException:
            self.abort()
            raise
        self._row_groups.close()

    def abort(self) -> None:
        """Remove the temporary file."""
        self._row_groups.abort()

    def _end_rows(self) -> None:
        if self._rows:
            lines = lines_of_rows(self._rows)
            self._rows.clear()
            self.write_lines(lines)


def _may_be_large(lines: OutputLines) -> bool:
    """Return whether lines may exceed a batch, told with less effort than what each of them has."""
    num_bytes = sum(map(len, filter(None, lines.texts)))
    sources = {id(row[0]): row[0] for row in lines.arrow_rows if row is not None}
    num_bytes += len(lines) * max(map(_num_bytes_per_row, sources.values()), default=0)
    values = chain.from_iterable([passed.values() for passed in lines.passthrough])
    num_bytes += sum([len(value) for value in values if type(value) is str])
    return num_bytes > MAX_BATCH_BYTES


def _sizes_bytes(lines: OutputLines) -> list[int]:
    """Return about the bytes of text that each line generated, and that pass through with it."""
    sizes = [0 if text is None else len(text) for text in lines.texts]
    source: pa.RecordBatch | None = None
    num_source_bytes = 0
    for place, arrow_row in enumerate(lines.arrow_rows):
        if arrow_row is not None:
            if arrow_row[0] is not source:
                source = arrow_row[0]
                num_source_bytes = _num_bytes_per_row(source)
            sizes[place] += num_source_bytes
    for place, passthrough in enumerate(lines.passthrough):
        for value in passthrough.values():
            if type(value) is str:
                sizes[place] += len(value)
    return sizes


def _num_bytes_per_row(source: pa.RecordBatch) -> int:
    return int(source.nbytes // source.num_rows)
