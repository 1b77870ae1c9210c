"""Where finished rows go: the journal, or straight to standard output.

A row is *pending* from the moment it was read until its output is recorded; pending rows are
bounded by the look-ahead window.
"""

import logging
from typing import Protocol

from nanobatch.io.input_row import InputRow
from nanobatch.io.journal_record import JournalRecord
from nanobatch.io.journal_writer import JournalWriter
from nanobatch.io.output_row import OutputWriter
from nanobatch.job.finalize import RowJoiner
from nanobatch.job.monitor import Monitor
from nanobatch.request import RequestOutputs

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes a row and its outputs for good."""

    def write(self, row: InputRow, outputs: RequestOutputs) -> None:
        """Keep all outputs of one row."""
        ...


class JournalSink:
    """Keeps outputs in the journal, to be put in order when the run finalises."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer

    def write(self, row: InputRow, outputs: RequestOutputs) -> None:
        """Append one record."""
        self._writer.append(
            JournalRecord(row_index=row.row_index, payload_hash=row.payload_hash, outputs=outputs)
        )


class StdoutSink:
    """Prints outputs as they come, with the columns that pass through."""

    def __init__(self, writer: OutputWriter, joiner: RowJoiner) -> None:
        self._writer = writer
        self._joiner = joiner

    def write(self, row: InputRow, outputs: RequestOutputs) -> None:
        """Print the row's lines."""
        for output in outputs:
            self._writer.write(self._joiner.join(row, output))


class Recorder:
    """Matches outputs to the rows they belong to, hands them to the sink and counts them."""

    def __init__(self, sink: Sink, monitor: Monitor) -> None:
        self._sink = sink
        self._monitor = monitor
        self._pending: dict[int, tuple[InputRow, int]] = {}

    @property
    def num_pending(self) -> int:
        """Rows that were read and have no recorded output."""
        return len(self._pending)

    def expect(self, row: InputRow, *, num_bytes: int) -> None:
        """Keep a row until its output comes; num_bytes is its share of the input."""
        self._pending[row.row_index] = (row, num_bytes)

    def record(self, outputs: RequestOutputs) -> None:
        """Record all outputs of a pending row.

        Raises:
            StorageError: The journal could not be written.
        """
        row, num_bytes = self._pending.pop(outputs[0].row_index)
        self._sink.write(row, outputs)
        self._monitor.count_row(outputs, num_bytes=num_bytes)
        logger.debug("finished row %d", row.row_index)
