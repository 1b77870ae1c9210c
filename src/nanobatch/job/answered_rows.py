"""Input rows on the way into an output: each meets its answer from the journal.

Knows that a row must have a record and must not have changed since; not where rows come from nor
how they are written.
"""

from collections.abc import Iterator, Sequence

from nanobatch.errors import JournalError
from nanobatch.io.input_row import InputRow, decode_together
from nanobatch.io.journal_index import JournalIndex
from nanobatch.io.journal_record import JournalRecord
from nanobatch.io.output_row import OutputWriter
from nanobatch.job.row_joiner import RowJoiner
from nanobatch.job.same_job import changed_row_error


class AnsweredRows:
    """Adds rows to an output, in order: called with one, or with many at once for speed.

    Args:
        index: Has the answers.
        joiner: Makes rows of the output of rows and answers.
        writer: Writes them.
        with_numbers: Whether token ids or log probabilities are written.
    """

    def __init__(
        self,
        index: JournalIndex,
        joiner: RowJoiner,
        writer: OutputWriter,
        *,
        with_numbers: bool,
    ) -> None:
        self._index = index
        self._joiner = joiner
        self._writer = writer
        self._with_numbers = with_numbers

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
        for portion, records in self._with_records(rows):
            joined = zip(portion, records, strict=True)
            self._writer.write_all(
                [self._joiner.join(row, record.outputs) for row, record in joined]
            )

    def _with_records(
        self, rows: Sequence[InputRow]
    ) -> Iterator[tuple[Sequence[InputRow], list[JournalRecord]]]:
        """Yield rows with their records, so many at a time as their records fit memory."""
        for row in rows:
            if not self._index.has(row.row_index):
                raise JournalError(f"{row.location} has no record", hint="run the same line again")
        row_indices = [row.row_index for row in rows]
        place = 0
        for records in self._index.read_portions(row_indices, with_numbers=self._with_numbers):
            portion = rows[place : place + len(records)]
            place += len(records)
            for row, record in zip(portion, records, strict=True):
                if record.payload_hash != row.payload_hash:
                    raise changed_row_error(row)
            yield portion, records
