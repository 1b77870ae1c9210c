"""Standard input kept in a file while it is read, so that a job over a pipe can resume.

Knows bytes only. Rows are read from the spool as soon as their bytes arrived; there is no
thread, and nothing waits for the pipe to end. When the same line runs again, the new pipe is
compared byte by byte with what the spool holds already, and continues it.
"""

import io
import os
from pathlib import Path
from typing import BinaryIO, Self

import xxhash

from nanobatch.errors import ResumeMismatchError, StorageError

READ_BYTES = 1 << 16


class StdinSpool:
    """A pipe and the file that remembers it. For one thread at a time.

    With a path, bytes can be read again (when finalising, when resuming). Without one (results
    go to standard output and nothing is resumed) the pipe is handed through and read once.
    """

    def __init__(self, stream: BinaryIO, path: Path | None) -> None:
        self._stream = stream
        self._path = path
        self._spool_fd: int | None = None
        self._num_spooled_bytes = 0
        self._num_pipe_bytes = 0
        self._at_end = False

    @classmethod
    def reopened(cls, path: Path) -> Self:
        """Return what a spool file holds now, for who has no pipe: one that has ended there.

        The file is only read, and a run may go on writing it.

        Raises:
            OSError: The file cannot be opened.
        """
        spool = cls(io.BytesIO(), path)
        spool._spool_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        spool._num_spooled_bytes = spool._num_pipe_bytes = os.fstat(spool._spool_fd).st_size
        spool._at_end = True
        return spool

    @property
    def path(self) -> Path | None:
        """File that holds the bytes, or None when they are not kept."""
        return self._path

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the pipe once it has ended, else None."""
        return self._num_pipe_bytes if self._at_end else None

    def without_file(self) -> "StdinSpool":
        """Return the same pipe, to be read once and kept nowhere."""
        assert self._num_pipe_bytes == 0, "what was read from a pipe is gone"
        return StdinSpool(self._stream, None)

    def open(self) -> "SpoolReader":
        """Return a reader from the first byte; several may be open when there is a spool file."""
        return SpoolReader(self)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes from an offset, waiting for the pipe where they have not come yet.

        Returns:
            At least one byte, or b"" at the end of the pipe.

        Raises:
            ResumeMismatchError: The pipe differs from the one that filled the spool.
            StorageError: The spool file cannot be written.
            OSError: The pipe cannot be read.
        """
        if self._path is None:
            assert offset == self._num_pipe_bytes, "a pipe without a spool file is read once"
            return self._read_pipe(size)
        while offset >= self._num_pipe_bytes and not self._at_end:
            self._fill()
        length = min(size, self._num_pipe_bytes - offset)
        return os.pread(self._open_spool(), length, offset) if length > 0 else b""

    def close(self) -> None:
        """Close the spool file; the pipe is its owner's."""
        if self._spool_fd is not None:
            os.close(self._spool_fd)
            self._spool_fd = None

    def _read_pipe(self, size: int) -> bytes:
        chunk = os.read(self._stream.fileno(), size)
        self._num_pipe_bytes += len(chunk)
        self._at_end = not chunk
        return chunk

    def _fill(self) -> None:
        spool_fd = self._open_spool()
        offset = self._num_pipe_bytes
        chunk = self._read_pipe(READ_BYTES)
        known = os.pread(spool_fd, len(chunk), offset)
        if not chunk.startswith(known) or (not chunk and offset < self._num_spooled_bytes):
            raise ResumeMismatchError(
                f"standard input differs from the earlier run's within {len(known) or 1:,} bytes "
                f"of byte {offset:,}",
                hint="pipe in the same bytes, or start again with --restart",
            )
        self._append(spool_fd, memoryview(chunk)[len(known) :])

    def _append(self, spool_fd: int, rest: memoryview) -> None:
        try:
            while rest:
                num_written = os.pwrite(spool_fd, rest, self._num_spooled_bytes)
                self._num_spooled_bytes += num_written
                rest = rest[num_written:]
        except OSError as error:
            raise StorageError(
                f"cannot write {self._path}: {os.strerror(error.errno or 0)}",
                hint="standard input is kept there; free space and run the same line again",
            ) from error

    def _open_spool(self) -> int:
        if self._spool_fd is None:
            assert self._path is not None
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._spool_fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise StorageError(
                    f"cannot write {self._path}: {os.strerror(error.errno or 0)}"
                ) from error
            self._num_spooled_bytes = os.fstat(self._spool_fd).st_size
        return self._spool_fd


def digest(spool: StdinSpool) -> str:
    """Read a spool from its start to the end of the pipe; return a hash of its bytes.

    Raises:
        StorageError: The spool file cannot be written.
        OSError: The pipe cannot be read.
    """
    reader, hashed = spool.open(), xxhash.xxh3_128()
    while chunk := reader.read(READ_BYTES):
        hashed.update(chunk)
    return hashed.hexdigest()


class SpoolReader:
    """A place in a spool that is still being filled; a `ByteReader`."""

    def __init__(self, spool: StdinSpool) -> None:
        self._spool = spool
        self._offset = 0

    def read(self, size: int, /) -> bytes:
        """Return at least one and at most `size` bytes, or b"" at the end of the pipe."""
        chunk = self._spool.read_at(self._offset, size)
        self._offset += len(chunk)
        return chunk

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._offset

    def close(self) -> None:
        """Nothing to release: the spool keeps its file open for the next reader."""
