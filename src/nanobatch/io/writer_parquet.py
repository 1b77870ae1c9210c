"""Parquet out: an explicit schema, row groups cut by bytes, bounded memory.

Knows when a row group is full and how it gets into a file; `output_batch` makes the columns.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nanobatch.io.columns import EXTRA, OutputColumns
from nanobatch.io.durable import AtomicFile
from nanobatch.io.output_batch import BatchBuilder
from nanobatch.io.output_row import OutputRow, OutputWriter

MIN_ROW_GROUP_BYTES, MAX_ROW_GROUP_BYTES = 2 << 20, 16 << 20
"""Arrow bytes of a row group. A writer holds about three times that; readers prefer large ones."""
ROW_GROUP_SHARE = 1 / 32
"""Share of what is written so far that a row group may have: groups grow with the file, and so
does the memory that a job of its size may take."""
MAX_BATCH_ROWS = 512
MAX_BATCH_TEXT = 1 << 20
"""Characters of text held as Python objects before they become Arrow columns."""


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
        self._num_characters = 0
        self._batches: list[pa.RecordBatch] = []
        self._num_bytes = 0
        self._num_written_bytes = 0
        self._file = AtomicFile(path)
        self._writer = pq.ParquetWriter(
            self._file, schema, compression="zstd", use_dictionary=_dictionary_columns(schema)
        )

    def write(self, row: OutputRow) -> None:
        """Add a row; see `OutputWriter.write`."""
        self._rows.append(row)
        num_characters = len(row.output.text)
        for value in row.passthrough.values():
            if type(value) is str:
                num_characters += len(value)
        self._num_characters += num_characters
        if len(self._rows) >= MAX_BATCH_ROWS or self._num_characters >= MAX_BATCH_TEXT:
            self._end_batch()

    def close(self) -> None:
        """Write what is left and the footer; see `OutputWriter.close`."""
        try:
            self._end_batch()
            self._end_row_group()
            self._writer.close()
        except BaseException:
            self.abort()
            raise
        self._file.commit()

    def abort(self) -> None:
        """Remove the temporary file."""
        self._writer.is_open = False  # or its finalizer would write a footer into a closed file
        self._file.abort()

    def _end_batch(self) -> None:
        if not self._rows:
            return
        batch = self._builder.build(self._rows)
        self._rows.clear()
        self._num_characters = 0
        self._batches.append(batch)
        self._num_bytes += batch.nbytes
        wanted = int(self._num_written_bytes * ROW_GROUP_SHARE)
        if self._num_bytes >= min(max(wanted, MIN_ROW_GROUP_BYTES), MAX_ROW_GROUP_BYTES):
            self._end_row_group()

    def _end_row_group(self) -> None:
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches)
        self._batches.clear()
        self._num_written_bytes += self._num_bytes
        self._num_bytes = 0
        self._writer.write_table(table, row_group_size=table.num_rows)


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    # Texts and ids hardly repeat: a dictionary is built, found useless and thrown away.
    unique = {"row_index", "id", "generated_text", "error_message", EXTRA}
    return [name for name in schema.names if name not in unique]
