"""Which writer writes an output: the one place where formats and shapes meet.

Formats are known by suffix here and nowhere else.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from nanobatch.errors import OutputError
from nanobatch.io.columns import OutputColumns
from nanobatch.io.output_compression import Compression
from nanobatch.io.output_flat import FlatEncoder
from nanobatch.io.output_openai import OpenAiEncoder, OpenAiJob
from nanobatch.io.output_writer import OutputWriter
from nanobatch.io.writer_jsonl import EncodeRow, JsonlWriter
from nanobatch.io.writer_parquet import ParquetWriter


class OutputFormat(StrEnum):
    """Formats of an output file."""

    JSONL = "jsonl"
    PARQUET = "parquet"


_FORMAT_OF_SUFFIX = {
    ".jsonl": OutputFormat.JSONL,
    ".ndjson": OutputFormat.JSONL,
    ".parquet": OutputFormat.PARQUET,
}
_COMPRESSION_OF_SUFFIX: Mapping[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
_SUPPORTED = (
    f"{', '.join(_FORMAT_OF_SUFFIX)}; JSONL also with {' or '.join(_COMPRESSION_OF_SUFFIX)}"
)


def output_format(path: Path) -> OutputFormat:
    """Return the format that an output's suffix asks for, without touching the file.

    Raises:
        OutputError: The suffix is not known, or asks for a compressed Parquet file.
    """
    compression = output_compression(path)
    plain = path if compression is None else path.with_suffix("")
    found = _FORMAT_OF_SUFFIX.get(plain.suffix.lower())
    if found is None:
        what = f"has the suffix {path.suffix!r}" if path.suffix else "has no suffix"
        raise OutputError(f"output {path} {what}", hint=f"supported are {_SUPPORTED}")
    if found is OutputFormat.PARQUET and compression is not None:
        raise OutputError(
            f"output {path} has the suffix {path.suffix!r} after {plain.suffix!r}",
            hint="Parquet is compressed inside: end the name after .parquet",
        )
    return found


def output_compression(path: Path) -> Compression | None:
    """Return how an output's suffix asks for it to be compressed as a whole, or None."""
    return _COMPRESSION_OF_SUFFIX.get(path.suffix.lower())


def open_writer(
    path: Path,
    columns: OutputColumns,
    *,
    openai: OpenAiJob | None = None,
    metadata: Mapping[str, str] | None = None,
) -> OutputWriter:
    """Return a writer for an output file; the file appears when the writer is closed.

    Args:
        path: Where the file appears.
        columns: Its columns.
        openai: The job, for rows in OpenAI's shape; None for flat rows. JSONL only.
        metadata: Keys and JSON texts that say what made the file; kept by Parquet only.

    Raises:
        OutputError: The suffix is not known, or the path exists and is no regular file.
        StorageError: The file cannot be created.
    """
    if output_format(path) is OutputFormat.PARQUET:
        assert openai is None, "settled_shape refused OpenAI's shape in Parquet"
        return ParquetWriter(path, columns, metadata=metadata or {})
    compression = output_compression(path)
    if openai is not None:
        return JsonlWriter(path, OpenAiEncoder(columns, openai).encode, compression=compression)
    flat = FlatEncoder(columns)
    return JsonlWriter(path, flat.encode, encode_lines=flat.encode_lines, compression=compression)


def row_encoder(columns: OutputColumns, openai: OpenAiJob | None) -> EncodeRow:
    """Return what turns rows into lines: flat ones, or OpenAI's where a job is given."""
    return FlatEncoder(columns).encode if openai is None else OpenAiEncoder(columns, openai).encode
