"""Record batches into a Parquet file: row groups cut by bytes, bounded memory.

Knows when a row group is full and how it gets into a file that appears complete or not at all;
nothing of rows.
"""

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nanobatch.io.columns import EXTRA
from nanobatch.io.durable import AtomicFile

MIN_ROW_GROUP_BYTES, MAX_ROW_GROUP_BYTES = 2 << 20, 16 << 20
"""Arrow bytes of a row group. A writer holds about three times that; readers prefer large ones."""
ROW_GROUP_SHARE = 1 / 32
"""Share of what is written so far that a row group may have: groups grow with the file, and so
does the memory that a job of its size may take."""


class RowGroupWriter:
    """Writes record batches to a `.parquet` file (zstd) that appears complete or not at all.

    Args:
        path: Where the file appears.
        schema: Its columns and metadata.

    Raises:
        StorageError: The file cannot be created or written; also from `write` and `close`.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._num_bytes = 0
        self._num_written_bytes = 0
        self._file = AtomicFile(path)
        self._writer = pq.ParquetWriter(
            self._file, schema, compression="zstd", use_dictionary=_dictionary_columns(schema)
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch of the schema."""
        self._batches.append(batch)
        self._num_bytes += batch.nbytes
        wanted = int(self._num_written_bytes * ROW_GROUP_SHARE)
        if self._num_bytes >= min(max(wanted, MIN_ROW_GROUP_BYTES), MAX_ROW_GROUP_BYTES):
            self._end_row_group()

    def close(self) -> None:
        """Write what is left and the footer; the file appears."""
        try:
            self._end_row_group()
            self._writer.close()
        except BaseException:
            self.abort()
            raise
        self._file.commit()

    def abort(self) -> None:
        """Remove the temporary file."""
        # Now, or its destructor would write a footer into a closed file, whenever that comes.
        with suppress(Exception):
            self._writer.close()
        self._writer.is_open = False
        self._file.abort()

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
