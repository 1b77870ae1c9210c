"""Where finished rows go: the journal, or straight to standard output.

A row is *pending* from the moment it was read until its output is recorded; pending rows are
bounded by the look-ahead window.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from nanobatch.io.input_row import InputRow
from nanobatch.io.journal_writer import JournalWriter
from nanobatch.io.output_shape import shape_asked_for_by
from nanobatch.io.rows import RowParser
from nanobatch.job.monitor import Monitor
from nanobatch.job_config import OutputShape
from nanobatch.request import RequestOutputs

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes rows and their outputs for good."""

    def expect(self, rows: Sequence[InputRow]) -> None:
        """Take note of rows whose outputs will come; rows are expected in input order."""
        ...

    def write(self, rows: Sequence[InputRow], finished: Sequence[RequestOutputs]) -> None:
        """Keep all outputs of some rows: as many as there are rows."""
        ...


class JournalSink:
    """Keeps outputs in the journal, to be put in order when the run finalises."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer

    def expect(self, rows: Sequence[InputRow]) -> None:
        """Do nothing."""

    def write(self, rows: Sequence[InputRow], finished: Sequence[RequestOutputs]) -> None:
        """Append a record for each row."""
        row_indices = [row.row_index for row in rows]
        hashes = [row.payload_hash for row in rows]
        self._writer.append_all(zip(row_indices, hashes, finished, strict=True))


MAX_WAITING_ROWS = 10_000

PrintRow = Callable[[InputRow, RequestOutputs], None]


class StdoutSink:
    """Prints outputs as they come, in the shape that the job's first parsable row asks for.

    Rows that are finished before, all of them at fault, wait for it, but not without bound: after
    `MAX_WAITING_ROWS` the shape is flat.

    Args:
        parser: Tells what a row asks for.
        shape: The shape where it is settled already, or None.
        open_printer: Returns what prints rows in a shape; called once.
    """

    def __init__(
        self,
        parser: RowParser,
        shape: OutputShape | None,
        *,
        open_printer: Callable[[OutputShape], PrintRow],
    ) -> None:
        self._parser = parser
        self._open_printer = open_printer
        self._print: PrintRow | None = None if shape is None else open_printer(shape)
        self._waiting: list[tuple[InputRow, RequestOutputs]] = []

    def expect(self, rows: Sequence[InputRow]) -> None:
        """Settle the shape if one of these is the first row that can."""
        for row in rows:
            if self._print is not None:
                return
            shape = shape_asked_for_by(row, self._parser)
            if shape is not None:
                self._begin(shape)

    def write(self, rows: Sequence[InputRow], finished: Sequence[RequestOutputs]) -> None:
        """Print the lines of rows, at once if the shape is known.

        Raises:
            StorageError: Standard output cannot be written.
        """
        for row, outputs in zip(rows, finished, strict=True):
            if self._print is not None:
                self._print(row, outputs)
                continue
            self._waiting.append((row, outputs))
            if len(self._waiting) >= MAX_WAITING_ROWS:
                self._begin("flat")

    def close(self) -> None:
        """Print what waits: no row could be parsed.

        Raises:
            StorageError: Standard output cannot be written.
        """
        if self._print is None:
            self._begin("flat")

    def _begin(self, shape: OutputShape) -> None:
        self._print = self._open_printer(shape)
        for row, outputs in self._waiting:
            self._print(row, outputs)
        self._waiting.clear()


NUM_WATCHED_ROWS = 1000
"""Rows from the first of which it is known whether one is good."""


class Recorder:
    """Matches outputs to the rows they belong to, hands them to the sink and counts them."""

    def __init__(self, sink: Sink, monitor: Monitor) -> None:
        self._sink = sink
        self._monitor = monitor
        self._pending: dict[int, tuple[InputRow, int, int]] = {}
        self._num_expected = 0
        self._num_watched = NUM_WATCHED_ROWS
        self._first_good_place = NUM_WATCHED_ROWS

    @property
    def num_settled(self) -> int:
        """Rows that were read before the first one without a recorded output.

        Takes microseconds a thousand pending rows.
        """
        for _, _, num_before in self._pending.values():
            return num_before
        return self._num_expected

    def has_good_row_among(self, num_rows: int) -> bool:
        """Return whether one of the rows that were read first is recorded without an error.

        Args:
            num_rows: How many of them count, at most `NUM_WATCHED_ROWS`.
        """
        return self._first_good_place < num_rows

    def expect(self, rows: Sequence[InputRow], *, sizes_bytes: Sequence[int]) -> None:
        """Keep rows until their outputs come.

        Args:
            rows: Rows in order.
            sizes_bytes: The share of the input that each of them is.
        """
        places = count(self._num_expected)
        for entry in zip(rows, sizes_bytes, places, strict=False):
            self._pending[entry[0].row_index] = entry
        self._num_expected += len(rows)
        self._sink.expect(rows)

    def record_all(self, finished: Sequence[RequestOutputs]) -> None:
        """Record all outputs of some pending rows; a portion costs less than its rows one by one.

        Raises:
            StorageError: The journal could not be written.
        """
        if not finished:
            return
        pop = self._pending.pop
        pending = [pop(outputs[0].row_index) for outputs in finished]
        self._sink.write([entry[0] for entry in pending], finished)
        self._monitor.count_rows(finished, num_bytes=sum([entry[1] for entry in pending]))
        if self._num_watched:
            self._watch([place for _, _, place in pending], finished)
        if logger.isEnabledFor(logging.DEBUG):
            for row, _, _ in pending:
                logger.debug("finished row %d", row.row_index)

    def _watch(self, places: Sequence[int], finished: Sequence[RequestOutputs]) -> None:
        for place, outputs in zip(places, finished, strict=True):
            if place < NUM_WATCHED_ROWS:
                self._num_watched -= 1
                if all(output.error is None for output in outputs):
                    self._first_good_place = min(place, self._first_good_place)
