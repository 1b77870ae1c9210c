"""Writing the journal: records on disk soon, off the thread that makes them.

Knows when to write and to fsync, and what to do when either fails; not what a record means. A
record is handed to the operating system within milliseconds (a killed process loses no
more) and fsynced within five seconds (a crashed machine loses no more).
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from nanobatch.errors import NanobatchError
from nanobatch.io.durable import fsync_folder, make_folder, storage_error
from nanobatch.io.journal_index import JournalIndex
from nanobatch.io.journal_record import JournalRecord, RecordValues, encode_record
from nanobatch.io.journal_segment import (
    SEGMENT_HEADER,
    segment_numbers,
    segment_path,
)

WRITE_INTERVAL_S = 0.005
FSYNC_INTERVAL_S = 5.0
WRITE_BYTES = 1 << 18
"""Pending bytes that are written at once, before the interval is over."""
MAX_PENDING_BYTES = 1 << 24
"""Pending bytes above which `append` waits for the disk."""


class JournalWriter:
    """Appends finished rows to a new segment of a journal and tells its index where they are.

    Records are encoded by the caller and written by the writer's own thread. After a failed write
    the segment is cut back to its last whole record, and the error is raised by every later
    `append` and `flush` and by the first `close`: rows that were not written are run again.

    Args:
        index: Told where the records are.
        write_interval_s: Longest time that a record waits to be written.
        fsync_interval_s: Longest time that it then waits to be fsynced.
        before_write: Called, in the writer's thread, before each write and before the segment is
            created; what it raises is a failed write, after which nothing more is written.

    Raises:
        StorageError: The folder or the segment cannot be created.
    """

    def __init__(
        self,
        index: JournalIndex,
        *,
        write_interval_s: float = WRITE_INTERVAL_S,
        fsync_interval_s: float = FSYNC_INTERVAL_S,
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        self._index = index
        self._before_write = before_write
        self._write_interval_s = write_interval_s
        self._number = max(segment_numbers(index.folder), default=0) + 1
        self.path = segment_path(index.folder, self._number)
        self._before_write()
        try:
            make_folder(index.folder)
            self._file = _SegmentFile(self.path, fsync_interval_s=fsync_interval_s)
        except OSError as error:
            raise storage_error(self.path, error) from error
        self._changed = threading.Condition()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._pending_since_s = 0.0
        self._num_appended = 0
        self._num_durable = 0
        self._num_wanted_durable = 0
        self._is_closing = False
        self._failure: NanobatchError | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes of records that are appended and not yet written."""
        return self._pending_bytes

    def append(self, record: JournalRecord) -> None:
        """Queue a record; waits only when `MAX_PENDING_BYTES` are not yet written.

        Raises:
            StorageError: An earlier write failed.
            LockLostError: `before_write` found that another run has the output.
        """
        self.append_all((record,))

    def append_all(self, records: Iterable[JournalRecord | RecordValues]) -> None:
        """Queue records, all of them or none; see `append`."""
        encoded = [encode_record(record) for record in records]
        num_bytes = sum(map(len, encoded))
        with self._changed:
            assert not self._is_closing, "append after close"
            while self._pending_bytes > MAX_PENDING_BYTES and self._failure is None:
                self._changed.wait()
            self._raise_failure()
            if not self._pending:
                self._pending_since_s = time.monotonic()
                self._changed.notify_all()
            elif self._pending_bytes < WRITE_BYTES <= self._pending_bytes + num_bytes:
                self._changed.notify_all()
            self._pending += encoded
            self._pending_bytes += num_bytes
            self._num_appended += len(encoded)

    def flush(self) -> None:
        """Wait until everything appended so far is fsynced and in the index.

        Raises:
            StorageError: A write failed.
        """
        with self._changed:
            self._num_wanted_durable = target = self._num_appended
            self._changed.notify_all()
            while self._num_durable < target and self._failure is None:
                self._changed.wait()
            self._raise_failure()

    def close(self) -> None:
        """Write and fsync what is pending and close the segment; a second call does nothing.

        Raises:
            StorageError: A write failed.
        """
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        self._raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except NanobatchError as error:
            if exception is not error:  # the failure itself is already on its way
                raise

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while self._step():
                pass
            self._file.close()
        except NanobatchError as error:  # from before_write: the folder may be another run's now
            self._fail(error)
            with contextlib.suppress(OSError):
                self._file.close()
        except Exception as error:  # whatever ends the thread must reach the caller
            failure = storage_error(self.path, error)
            failure.__cause__ = error
            self._fail(failure)
            self._file.abandon()

    def _fail(self, failure: NanobatchError) -> None:
        with self._changed:
            self._failure = failure
            self._pending.clear()
            self._changed.notify_all()

    def _step(self) -> bool:
        """Wait for work and do it; return whether there may be more."""
        with self._changed:
            self._wait_for_work()
            batch, self._pending = self._pending, []
            num_bytes, num_taken = self._pending_bytes, self._num_appended
            must_fsync = self._is_closing or self._num_wanted_durable > self._num_durable
            is_last = self._is_closing
        if batch:
            self._before_write()
            offset = self._file.append(batch)
            self._index.add_written(self._number, offset, batch)
        if must_fsync or self._file.seconds_to_fsync() <= 0:
            self._file.fsync()
        with self._changed:
            self._pending_bytes -= num_bytes
            if not self._file.is_dirty:
                self._num_durable = num_taken
            self._changed.notify_all()
        return not is_last

    def _wait_for_work(self) -> None:
        while True:
            if self._is_closing or self._num_wanted_durable > self._num_durable:
                return
            timeout_s = self._file.seconds_to_fsync()
            if self._pending:
                if self._pending_bytes >= WRITE_BYTES:
                    return
                age_s = time.monotonic() - self._pending_since_s
                timeout_s = min(timeout_s, self._write_interval_s - age_s)
            if timeout_s <= 0:
                return
            self._changed.wait(min(timeout_s, threading.TIMEOUT_MAX))


class _SegmentFile:
    """A segment being written: whole records, fsynced now and then, cut back on failure."""

    def __init__(self, path: Path, *, fsync_interval_s: float) -> None:
        self._fsync_interval_s = fsync_interval_s
        self._num_bytes = 0
        self._dirty_since_s: float | None = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor: int | None = os.open(path, flags, 0o666)
        try:
            self.append([SEGMENT_HEADER])
            self.fsync()
            fsync_folder(path.parent)
        except OSError:
            self.abandon()
            raise

    @property
    def is_dirty(self) -> bool:
        """Whether bytes were written that are not fsynced."""
        return self._dirty_since_s is not None

    def seconds_to_fsync(self) -> float:
        """Return the time left until the next fsync is due, infinity if nothing is dirty."""
        if self._dirty_since_s is None:
            return float("inf")
        return self._dirty_since_s + self._fsync_interval_s - time.monotonic()

    def append(self, records: list[bytes]) -> int:
        """Write records and return the offset of the first.

        Raises:
            OSError: Not all could be written; those that were written whole are kept.
        """
        assert self._descriptor is not None
        offset = self._num_bytes
        rest = memoryview(b"".join(records))
        end = offset + len(rest)
        if self._dirty_since_s is None:
            self._dirty_since_s = time.monotonic()
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            for record in records:
                if self._num_bytes + len(record) > end - len(rest):
                    break
                self._num_bytes += len(record)
            raise
        self._num_bytes = end
        return offset

    def fsync(self) -> None:
        """Make what was written durable."""
        assert self._descriptor is not None
        os.fsync(self._descriptor)
        self._dirty_since_s = None

    def close(self) -> None:
        """Close the file; some file systems report failed writes only here."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def abandon(self) -> None:
        """Cut what the failed batch left, so that the file ends with a whole record, and close."""
        with contextlib.suppress(OSError):  # else the tail is cut when the journal is opened
            if self._descriptor is not None:
                os.ftruncate(self._descriptor, self._num_bytes)
                os.fsync(self._descriptor)
        with contextlib.suppress(OSError):
            self.close()
