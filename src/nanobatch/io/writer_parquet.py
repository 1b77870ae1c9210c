"""Parquet out: an explicit schema, bounded memory.

Knows how many rows become a batch; `output_batch` makes its columns, `row_groups` the file.
"""

from collections.abc import Mapping
from pathlib import Path

from nanobatch.io.columns import OutputColumns
from nanobatch.io.output_batch import BatchBuilder
from nanobatch.io.output_row import OutputRow, OutputWriter
from nanobatch.io.row_groups import RowGroupWriter

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
        self._row_groups = RowGroupWriter(path, schema)

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
        except BaseException:
            self.abort()
            raise
        self._row_groups.close()

    def abort(self) -> None:
        """Remove the temporary file."""
        self._row_groups.abort()

    def _end_batch(self) -> None:
        if not self._rows:
            return
        self._row_groups.write(self._builder.build(self._rows))
        self._rows.clear()
        self._num_characters = 0
