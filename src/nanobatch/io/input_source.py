"""One input of a job: where its bytes come from, its format, what sniffing it found.

Knows how to open bytes, not what they mean. Whether a file is compressed or remote is decided
here and nowhere else: readers see a `ByteReader`, or for Parquet an Arrow file.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from nanobatch.errors import InputReadError
from nanobatch.io.byte_reader import ByteReader
from nanobatch.io.compression import Codec, DecompressingReader
from nanobatch.io.remote_files import RemoteFile, RemoteReader, one_line
from nanobatch.io.stdin_spool import StdinSpool
from nanobatch.job_config import InputFormat

STDIN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """An input that was opened and sniffed.

    Attributes:
        path: Path or URL as it was given or found; `-` is standard input.
        format: How to read it.
        size_bytes: Size on disk when it was sniffed; None for standard input.
        delimiter: Field separator, for CSV.
        columns: Column names where the input declares them (CSV, Parquet), else None.
        num_rows: Number of rows where the input declares it (Parquet), else None.
        arrow_schema: Types of the columns, for Parquet.
        codec: How the file is compressed as a whole; None if it is not.
        remote: Where a remote file is; None for files of this machine.
        spool: Standard input; None for files.
    """

    path: str
    format: InputFormat
    size_bytes: int | None
    delimiter: str = ","
    columns: tuple[str, ...] | None = None
    num_rows: int | None = None
    arrow_schema: pa.Schema | None = None
    codec: Codec | None = None
    remote: RemoteFile | None = None
    spool: StdinSpool | None = None

    @property
    def name(self) -> str:
        """What messages call the input."""
        return "<stdin>" if self.path == STDIN else self.path

    @property
    def num_bytes_taken(self) -> int:
        """Bytes of the input when all of it was read: of standard input as far as it came."""
        size_bytes = self.size_bytes if self.spool is None else self.spool.size_bytes
        return size_bytes or 0

    def open(self) -> ByteReader:
        """Open the bytes that rows consist of, decompressed, from their start.

        Raises:
            OSError: The file cannot be opened.
        """
        if self.spool is not None:
            return self.spool.open()
        reader: ByteReader = (
            RemoteReader(self.remote)
            if self.remote is not None
            else Path(self.path).open("rb", buffering=0)  # noqa: SIM115 (the caller closes it)
        )
        return reader if self.codec is None else DecompressingReader(reader, self.codec)

    def open_file(self) -> pa.NativeFile:
        """Open a file as it is on disk, to be read here and there.

        Raises:
            OSError: The file cannot be opened.
        """
        assert self.spool is None, "a pipe has no places to go to"
        if self.remote is not None:
            return self.remote.open_file()
        return pa.OSFile(os.fsencode(self.path))

    def require_unchanged_size(self, num_bytes_read: int) -> None:
        """Check at the end of the input that it is as long as it was when it was sniffed.

        Raises:
            InputReadError: It was cut or grew meanwhile, so its rows are not those of the job.
        """
        if self.size_bytes is not None and num_bytes_read != self.size_bytes:
            raise InputReadError(
                f"{self.name} ends at byte {num_bytes_read:,}; "
                f"it had {self.size_bytes:,} bytes when the run began",
                hint="an input must not change during a run; finished rows are kept",
            )


def total_bytes(sources: Sequence[InputSource]) -> int | None:
    """Return the bytes of all inputs, or None while standard input has not ended."""
    sizes = [
        source.size_bytes if source.spool is None else source.spool.size_bytes for source in sources
    ]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def read_failure(source: InputSource, offset_bytes: int, error: Exception) -> InputReadError:
    """Return the error for an input that failed in mid-run, naming file and offset on disk."""
    return InputReadError(
        f"cannot read {source.name} at byte {offset_bytes:,}: {one_line(error)}",
        hint="finished rows are kept; run the same line again once the input can be read",
    )
