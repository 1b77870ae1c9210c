"""JSONL out: lines to a file that appears complete, or to a stream as rows finish.

Knows files and streams; what a line holds is its encoder's part (`output_flat`,
`output_openai`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from nanobatch.io.durable import AtomicFile, storage_error
from nanobatch.io.output_compression import CompressedFile, Compression
from nanobatch.io.output_lines import OutputLines
from nanobatch.io.output_row import OutputRow
from nanobatch.io.output_writer import OutputWriter

_STREAM_HINT = "rows on standard output are not kept for a later run; -o FILE makes a run resumable"


EncodeRow = Callable[[OutputRow], bytes]
"""Turns a row into its lines; which shape they have is the encoder's part."""


EncodeLines = Callable[[OutputLines], bytes]
"""The same for lines of flat outputs."""


class JsonlWriter(OutputWriter):
    """Writes a `.jsonl` file, compressed or not, that appears complete or not at all."""

    def __init__(
        self,
        path: Path,
        encode: EncodeRow,
        *,
        encode_lines: EncodeLines | None = None,
        compression: Compression | None = None,
    ) -> None:
        self._encode = encode
        self._encode_lines = encode_lines
        file = AtomicFile(path)
        self._file = file if compression is None else CompressedFile(file, compression)

    def write(self, row: OutputRow) -> None:
        """Add a row; see `OutputWriter.write`."""
        self._file.write(self._encode(row))

    def write_lines(self, lines: OutputLines) -> None:
        """Add lines; see `OutputWriter.write_lines`."""
        if self._encode_lines is None:
            super().write_lines(lines)
        else:
            self._file.write(self._encode_lines(lines))

    def close(self) -> None:
        """Make the file appear; see `OutputWriter.close`."""
        self._file.commit()

    def abort(self) -> None:
        """Remove the temporary file."""
        self._file.abort()


class JsonlStreamWriter(OutputWriter):
    """Writes the lines of each finished row to a stream and flushes it, for `-o -`."""

    def __init__(self, stream: BinaryIO, encode: EncodeRow) -> None:
        self._encode = encode
        self._stream = stream

    def write(self, row: OutputRow) -> None:
        """Write and flush a row; see `OutputWriter.write`."""
        try:
            self._stream.write(self._encode(row))
            self._stream.flush()
        except OSError as error:
            raise storage_error("standard output", error, hint=_STREAM_HINT) from error

    def close(self) -> None:
        """Do nothing: every row is flushed, and the stream is its owner's."""

    def abort(self) -> None:
        """Do nothing: rows that are out cannot be taken back."""
