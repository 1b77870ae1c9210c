"""Compressed files that appear complete or not at all: gzip and zstandard.

Knows streams of bytes; not rows. The bytes depend on what is written alone: no time, no name.
"""

import zlib
from typing import Literal, Protocol

import pyarrow as pa

from nanobatch.io.durable import AtomicFile

Compression = Literal["gzip", "zstd"]

_GZIP_WINDOW_BITS = 31  # zlib's number for a gzip header, which it writes without name and time
_BUFFER_BYTES = 1 << 16


class _Compressor(Protocol):
    def write(self, chunk: bytes) -> None: ...

    def finish(self) -> None: ...


class CompressedFile:
    """Compresses what is written on its way into a file.

    A file holds a single gzip member or zstandard frame: some readers stop after the first
    without a word (pandas does for zstandard).
    """

    def __init__(self, file: AtomicFile, compression: Compression) -> None:
        self._file = file
        self._compressor: _Compressor = _Gzip(file) if compression == "gzip" else _Zstandard(file)
        self._chunks: list[bytes] = []
        self._num_bytes = 0

    def write(self, chunk: bytes) -> int:
        """Append bytes and return how many.

        Raises:
            StorageError: The file cannot be written.
        """
        self._chunks.append(chunk)
        self._num_bytes += len(chunk)
        if self._num_bytes >= _BUFFER_BYTES:
            self._compress()
        return len(chunk)

    def commit(self) -> None:
        """Make the file appear under its name.

        Raises:
            StorageError: The file cannot be written; nothing appears.
        """
        try:
            self._compress()
            self._compressor.finish()
        except BaseException:
            self.abort()
            raise
        self._file.commit()

    def abort(self) -> None:
        """Remove what was written."""
        self._file.abort()

    def _compress(self) -> None:
        self._compressor.write(b"".join(self._chunks))
        self._chunks.clear()
        self._num_bytes = 0


class _Gzip:
    def __init__(self, file: AtomicFile) -> None:
        self._file = file
        self._stream = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)

    def write(self, chunk: bytes) -> None:
        self._file.write(self._stream.compress(chunk))

    def finish(self) -> None:
        self._file.write(self._stream.flush())


class _Zstandard:
    def __init__(self, file: AtomicFile) -> None:
        self._stream = pa.CompressedOutputStream(_Uncloseable(file), "zstd")

    def write(self, chunk: bytes) -> None:
        self._stream.write(chunk)

    def finish(self) -> None:
        self._stream.close()


class _Uncloseable:
    """A file as pyarrow writes it: its stream closes what it writes into, which is not its own."""

    closed = False

    def __init__(self, file: AtomicFile) -> None:
        self._file = file
        self.tell = file.tell
        self.flush = file.flush

    def write(self, chunk: bytes) -> int:
        """Append bytes; those that the stream still has when the file was aborted are dropped."""
        return len(chunk) if self._file.closed else self._file.write(chunk)

    def close(self) -> None:
        """Leave the file open: only `commit` ends it."""
