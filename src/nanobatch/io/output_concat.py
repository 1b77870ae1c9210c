"""Outputs one after another into one, proving on the way that each holds its rows.

Streams: memory does not grow with the files. Parquet is copied by record batches, JSONL by lines
as they stand, decompressed and compressed again as the suffixes ask. Knows files and row numbers;
which pieces make up a job is `job/merge`'s concern.
"""

import io
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nanobatch.errors import CoverageError
from nanobatch.io.durable import AtomicFile
from nanobatch.io.output_compression import CompressedFile
from nanobatch.io.row_groups import RowGroupWriter
from nanobatch.io.row_sequence import RowSequence
from nanobatch.io.writers import output_compression

BUFFER_BYTES = 1 << 20
MAX_BATCH_ROWS = 512

OnRows = Callable[[int], None]

_LINE_START = re.compile(
    rb'\{"(?:row_index":(\d{1,18}),"id":(?:null|"[^"\\]*(?:\\.[^"\\]*)*"),"sample_index":(\d{1,18}),'
    rb'|id":"batch_req_[0-9a-f]+-(\d{1,18})",)'
)
"""Where a line says which row it is: a flat one in its numbers, OpenAI's in its id."""
_RUN_AGAIN = "run its shard again, or bring the file that its run wrote"
_READ_ERRORS = (OSError, pa.ArrowException)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPiece:
    """Files that hold a stretch of a job's rows.

    Attributes:
        paths: The files, in the order of their rows.
        rows: The rows that must be in them.
    """

    paths: tuple[Path, ...]
    rows: range

    @property
    def name(self) -> str:
        """What messages call the piece."""
        return str(self.paths[0] if len(self.paths) == 1 else self.paths[0].parent)


def concat_parquet(
    pieces: Sequence[OutputPiece], output: Path, *, schema: pa.Schema, on_rows: OnRows
) -> None:
    """Write the rows of Parquet pieces as one file, which appears when all are proven.

    Args:
        pieces: In the order of their rows.
        output: Where the file appears.
        schema: Its columns, which are those of every piece, and its metadata.
        on_rows: Called with the number of rows that were copied since; may raise.

    Raises:
        CoverageError: A piece is damaged or does not hold its rows; nothing appears.
        StorageError: The output cannot be written; nothing appears.
    """
    writer = RowGroupWriter(output, schema)
    try:
        for piece in pieces:
            sequence = RowSequence(piece.name, piece.rows)
            with closing(_batches(piece.paths)) as batches:
                for batch in batches:
                    on_rows(sequence.check(batch.column("row_index"), batch.column("sample_index")))
                    writer.write(batch)
            sequence.end()
    except BaseException:
        writer.abort()
        raise
    writer.close()


def concat_jsonl(pieces: Sequence[OutputPiece], output: Path, *, on_rows: OnRows) -> None:
    """Write the lines of JSONL pieces as one file, which appears when all are proven.

    Args:
        pieces: In the order of their rows; each compressed or not, as its suffix says.
        output: Where the file appears; its suffix says whether it is compressed.
        on_rows: Called with the number of rows that were copied since; may raise.

    Raises:
        CoverageError: A piece is damaged or does not hold its rows; nothing appears.
        StorageError: The output cannot be written; nothing appears.
    """
    file = AtomicFile(output)
    compression = output_compression(output)
    stream = file if compression is None else CompressedFile(file, compression)
    try:
        for piece in pieces:
            sequence = RowSequence(piece.name, piece.rows)
            num_lines = 0
            with closing(_line_portions(piece)) as portions:
                for lines in portions:
                    on_rows(sequence.check(*_numbers(piece, lines, num_lines)))
                    num_lines += len(lines)
                    stream.write(b"".join(lines))
            sequence.end()
    except BaseException:
        stream.abort()
        raise
    stream.commit()


def read_schema(path: Path) -> pa.Schema:
    """Return the schema of a Parquet file, metadata included.

    Raises:
        CoverageError: It is damaged or cannot be read.
    """
    try:
        return pq.read_schema(path)
    except _READ_ERRORS as error:
        raise _damaged(path, error) from error


def count_errors(paths: Sequence[Path]) -> Counter[str]:
    """Return how many rows of Parquet files are errors, by the code of their first one.

    Raises:
        CoverageError: A file is damaged or cannot be read.
    """
    counts: Counter[str] = Counter()
    last: int | None = None
    for batch in _batches(paths, columns=["row_index", "error_code"]):
        errors = batch.filter(batch.column("error_code").is_valid())
        for row_index, code in zip(*map(pa.Array.to_pylist, errors.columns), strict=True):
            if row_index != last:
                counts[code] += 1
            last = row_index
    return counts


def _batches(
    paths: Sequence[Path], *, columns: Sequence[str] | None = None
) -> Generator[pa.RecordBatch]:
    for path in paths:
        try:
            with (
                pa.OSFile(os.fsencode(path)) as opened,
                pq.ParquetFile(opened, pre_buffer=False, buffer_size=BUFFER_BYTES) as file,
            ):
                yield from file.iter_batches(batch_size=MAX_BATCH_ROWS, columns=columns)
        except _READ_ERRORS as error:
            raise _damaged(path, error) from error


def _line_portions(piece: OutputPiece) -> Generator[list[bytes]]:
    for path in piece.paths:
        try:
            with _open_lines(path) as stream:
                while lines := stream.readlines(BUFFER_BYTES):
                    if not lines[-1].endswith(b"}\n"):
                        raise CoverageError(
                            f"{path} is cut off in the middle of a line", hint=_RUN_AGAIN
                        )
                    yield lines
        except _READ_ERRORS as error:
            raise _damaged(path, error) from error


def _open_lines(path: Path) -> BinaryIO:
    compression = output_compression(path)
    if compression is None:
        return path.open("rb", buffering=BUFFER_BYTES)
    stream = pa.CompressedInputStream(pa.OSFile(os.fsencode(path)), compression)
    return io.BufferedReader(stream, BUFFER_BYTES)


def _numbers(
    piece: OutputPiece, lines: Sequence[bytes], num_lines_before: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the `row_index` and `sample_index` of lines."""
    matches = [_LINE_START.match(line) for line in lines]
    found = [(int(m[1] or m[3]), int(m[2] or 0)) for m in matches if m is not None]
    if len(found) < len(lines):
        number = num_lines_before + matches.index(None) + 1
        raise CoverageError(
            f"{piece.name}: line {number:,} is not a row that nanobatch wrote", hint=_RUN_AGAIN
        )
    rows, samples = zip(*found, strict=True)
    return rows, samples


def _damaged(path: Path, error: Exception) -> CoverageError:
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return CoverageError(f"{path} cannot be read: {' '.join(reason.split())}", hint=_RUN_AGAIN)
