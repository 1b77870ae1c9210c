"""Parquet out: an explicit schema, bounded memory.

Knows how many rows become a batch; `output_batch` makes its columns, `row_groups` the file.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from nanobatch.io.columns import OutputColumns
from nanobatch.io.output_batch import BatchBuilder
from nanobatch.io.output_row import OutputRow, OutputWriter
from nanobatch.io.row_groups import RowGroupWriter
from nanobatch.request import RequestOutput

MAX_BATCH_ROWS = 512
MAX_BATCH_BYTES = 1 << 20
"""About the bytes of text that become a batch: Python objects until then, and of the input's own
columns so few that none with 32-bit offsets overflows (a reader's batch has 256 rows at most)."""


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
        self._outputs: list[RequestOutput] = []
        self._num_text_bytes = 0
        self._source: pa.RecordBatch | None = None
        self._num_source_bytes_per_row = 0
        self._row_groups = RowGroupWriter(path, schema)

    def write(self, row: OutputRow) -> None:
        """Add a row with all its outputs; see `OutputWriter.write`."""
        num_passed_bytes = self._num_passed_bytes(row)
        for output in row.outputs:  # a batch may end between two of them: what passes is repeated
            self._rows.append(row)
            self._outputs.append(output)
            self._num_text_bytes += num_passed_bytes + len(output.text)
            if self._num_text_bytes >= MAX_BATCH_BYTES or len(self._rows) >= MAX_BATCH_ROWS:
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

    def _num_passed_bytes(self, row: OutputRow) -> int:
        """Return about the bytes that pass through with every output of a row."""
        if row.arrow_row is None:
            return sum([len(value) for value in row.passthrough.values() if type(value) is str])
        source, _ = row.arrow_row
        if source is not self._source:
            self._source = source
            self._num_source_bytes_per_row = source.nbytes // source.num_rows
        return self._num_source_bytes_per_row

    def _end_batch(self) -> None:
        if not self._rows:
            return
        self._row_groups.write(self._builder.build(self._rows, self._outputs))
        self._rows.clear()
        self._outputs.clear()
        self._num_text_bytes = 0
