"""Input rows on the way into an output: each meets its answer from the journal.

Knows that a row must have a record and must not have changed since; not where rows come from nor
how they are written.
"""

from collections.abc import Iterator, Sequence

from nanobatch.errors import JournalError
from nanobatch.io.columns import OutputColumns
from nanobatch.io.input_row import InputRow, decode_together
from nanobatch.io.journal_index import JournalIndex
from nanobatch.io.journal_payload import Sample, outputs_of
from nanobatch.io.output_writer import OutputWriter
from nanobatch.job.row_joiner import RowJoiner
from nanobatch.job.same_job import changed_row_error
from nanobatch.job_config import OutputShape


class AnsweredRows:
    """Adds rows to an output, in order: called with one, or with many at once for speed.

    Args:
        index: Has the answers.
        joiner: Makes rows or lines of the output of rows and answers.
        writer: Writes them.
        columns: Columns of the output.
        shape: Whether it has flat lines.
    """

    def __init__(
        self,
        index: JournalIndex,
        joiner: RowJoiner,
        writer: OutputWriter,
        *,
        columns: OutputColumns,
        shape: OutputShape,
    ) -> None:
        self._index = index
        self._joiner = joiner
        self._writer = writer
        self._columns = columns
        self._is_flat = shape == "flat"

    def __call__(self, row: InputRow) -> None:
        """Add a row; see `all`."""
        self.all((row,))

    def all(self, rows: Sequence[InputRow]) -> None:
        """Add rows, as many as fit memory.

        Raises:
            ResumeMismatchError: An input has changed since its rows were answered.
            JournalError: A row has no record.
            StorageError: The output cannot be written.
        """
        decode_together(rows)
        missing = self._index.first_missing([row.row_index for row in rows])
        if missing is not None:
            location = rows[missing].location
            raise JournalError(f"{location} has no record", hint="run the same line again")
        for portion, samples in self._with_samples(rows):
            if self._is_flat:
                self._writer.write_lines(
                    self._joiner.lines(portion, samples, columns=self._columns)
                )
                continue
            for row, samples_of_row in zip(portion, samples, strict=True):
                outputs = outputs_of(row.row_index, samples_of_row)
                self._writer.write(self._joiner.join(row, outputs))

    def _with_samples(
        self, rows: Sequence[InputRow]
    ) -> Iterator[tuple[Sequence[InputRow], list[list[Sample]]]]:
        """Yield rows with what the journal has of them, as many as records fit memory."""
        row_indices = [row.row_index for row in rows]
        first = 0
        for hashes, samples in self._index.read_portions(row_indices):
            portion = rows[first : first + len(samples)]
            first += len(samples)
            if hashes != [row.payload_hash for row in portion]:
                raise changed_row_error(
                    next(
                        row
                        for row, payload_hash in zip(portion, hashes, strict=True)
                        if row.payload_hash != payload_hash
                    )
                )
            yield portion, samples
