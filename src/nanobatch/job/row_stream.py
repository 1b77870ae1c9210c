"""Rows as they become available: from files at once, from a pipe without waiting for it.

A pipe's writer may be slow. Its rows are read on a thread of their own, so that rows that are
there already are answered while the next ones are being written.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

from nanobatch.errors import InputReadError
from nanobatch.io.input_row import InputRow
from nanobatch.io.input_source import InputSource
from nanobatch.io.readers import iter_rows

MAX_QUEUED_ROWS = 256
MAX_TAKEN_BYTES = 4 << 20
"""Input bytes after which no further row is taken at once, however many are asked for: what is
taken is tokenized in one go, and a row may hold megabytes."""
WAIT_S = 0.2


class RowStream(Protocol):
    """The rows of a job, from the first."""

    @property
    def is_exhausted(self) -> bool:
        """Whether no more rows come: all were taken, or an input failed."""
        ...

    @property
    def failure(self) -> InputReadError | None:
        """What failed; the rows before it were taken."""
        ...

    def take(self, num_rows: int, *, wait: bool) -> list[InputRow]:
        """Return up to num_rows rows and about MAX_TAKEN_BYTES, perhaps none.

        Args:
            num_rows: Most rows to return.
            wait: Whether to wait a moment where no row is there yet.
        """
        ...


def open_row_stream(
    sources: Sequence[InputSource], *, start: int = 0, stop: int | None = None
) -> RowStream:
    """Return rows start to stop of all inputs as a stream."""
    rows = iter_rows(sources, start=start, stop=stop)
    return PipeRows(rows) if any(source.spool for source in sources) else FileRows(rows)


class FileRows:
    """Rows that can be read at once."""

    def __init__(self, rows: Iterator[InputRow]) -> None:
        self._rows = rows
        self._offset_bytes = 0
        self.is_exhausted = False
        self.failure: InputReadError | None = None

    def take(self, num_rows: int, *, wait: bool) -> list[InputRow]:
        """Return rows that are read at once; see `RowStream.take`."""
        del wait
        taken: list[InputRow] = []
        end_bytes = self._offset_bytes + MAX_TAKEN_BYTES
        while len(taken) < num_rows and self._offset_bytes < end_bytes:
            # As many again as there are: never far beyond the bytes that may be taken.
            num_more = min(max(1, len(taken)), num_rows - len(taken))
            more: list[InputRow] = []
            try:
                more.extend(islice(self._rows, num_more))
            except InputReadError as error:
                self.failure = error
            if more:
                self._offset_bytes = more[-1].offset_bytes
                taken += more
            if len(more) < num_more:
                self.is_exhausted = True
                break
        return taken


class PipeRows:
    """Rows that are read on a thread as they come; a full queue makes the thread wait."""

    def __init__(self, rows: Iterator[InputRow]) -> None:
        self._rows = rows
        self._queue: queue.Queue[InputRow | BaseException | None] = queue.Queue(MAX_QUEUED_ROWS)
        self._offset_bytes = 0
        self.is_exhausted = False
        self.failure: InputReadError | None = None
        # A daemon: it may sit in a read of a pipe that nobody closes when the process ends.
        threading.Thread(target=self._read, name="nanobatch-input", daemon=True).start()

    def take(self, num_rows: int, *, wait: bool) -> list[InputRow]:
        """Return the rows that are there, at most num_rows; see `RowStream.take`."""
        taken: list[InputRow] = []
        end_bytes = self._offset_bytes + MAX_TAKEN_BYTES
        while len(taken) < num_rows and self._offset_bytes < end_bytes and not self.is_exhausted:
            try:
                item = self._queue.get(timeout=WAIT_S if wait and not taken else 0.0)
            except queue.Empty:
                break
            if item is None or isinstance(item, InputReadError):
                self.failure = item
                self.is_exhausted = True
            elif isinstance(item, BaseException):
                self.is_exhausted = True
                raise item
            else:
                self._offset_bytes = item.offset_bytes
                taken.append(item)
        return taken

    def _read(self) -> None:
        try:
            for row in self._rows:
                self._queue.put(row)
        except BaseException as error:  # whatever it is belongs to who takes the rows
            self._queue.put(error)
        else:
            self._queue.put(None)
