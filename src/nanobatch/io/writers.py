"""Which writer writes an output: the one place where formats are known by suffix.

Compressed JSONL is added here and in `writer_jsonl`; nothing else asks for a suffix.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from nanobatch.errors import OutputError
from nanobatch.io.columns import OutputColumns
from nanobatch.io.output_row import OutputWriter
from nanobatch.io.writer_jsonl import JsonlWriter
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


def output_format(path: Path) -> OutputFormat:
    """Return the format that an output's suffix asks for, without touching the file.

    Raises:
        OutputError: The suffix is not known.
    """
    found = _FORMAT_OF_SUFFIX.get(path.suffix.lower())
    if found is None:
        what = f"has the suffix {path.suffix!r}" if path.suffix else "has no suffix"
        raise OutputError(
            f"output {path} {what}", hint=f"supported are {', '.join(_FORMAT_OF_SUFFIX)}"
        )
    return found


def open_writer(
    path: Path, columns: OutputColumns, *, metadata: Mapping[str, str] | None = None
) -> OutputWriter:
    """Return a writer for an output file; the file appears when the writer is closed.

    Args:
        path: Where the file appears.
        columns: Its columns.
        metadata: Keys and JSON texts that say what made the file; kept by Parquet only.

    Raises:
        OutputError: The suffix is not known, or the path exists and is no regular file.
        StorageError: The file cannot be created.
    """
    if output_format(path) is OutputFormat.PARQUET:
        return ParquetWriter(path, columns, metadata=metadata or {})
    return JsonlWriter(path, columns)
