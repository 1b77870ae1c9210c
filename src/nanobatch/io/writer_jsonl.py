"""JSONL out: one compact object a line, keys in the order of the columns.

Knows how a row becomes a line. Pass-through values are written as they came: JSON needs no type
per column, so nothing goes to `extra` here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from nanobatch.io.columns import OutputColumns, free_name
from nanobatch.io.durable import AtomicFile, storage_error
from nanobatch.io.output_json import to_json
from nanobatch.io.output_row import ERROR, OK, OutputRow, OutputWriter, stop_reason_text

_STREAM_HINT = "rows on standard output are not kept for a later run; -o FILE makes a run resumable"


class JsonlEncoder:
    """Turns rows into lines.

    A pass-through key that clashes with one of our columns is renamed as `output_columns` does;
    one that was unknown there gets its name when it is first seen.
    """

    def __init__(self, columns: OutputColumns) -> None:
        self._columns = columns
        self._has_token_ids = columns.has_token_ids
        self._has_logprobs = columns.has_logprobs
        self._names: dict[str, str | None] = dict(columns.names)

    def encode(self, row: OutputRow) -> bytes:
        r"""Return a row as a line, `\n` included."""
        output = row.output
        error = output.error
        members: dict[str, object] = {
            "row_index": output.row_index,
            "id": row.id,
            "sample_index": output.sample_index,
            "status": OK if error is None else ERROR,
            "generated_text": output.text if error is None else None,
            "finish_reason": output.finish_reason,
            "stop_reason": stop_reason_text(output),
            "prompt_tokens": output.num_prompt_tokens,
            "cached_tokens": output.num_cached_tokens,
            "completion_tokens": output.num_completion_tokens,
            "error_code": None if error is None else error.code,
            "error_message": row.error_message,
        }
        if self._has_token_ids:
            members["token_ids"] = output.token_ids if error is None else None
        if self._has_logprobs:
            members["logprobs"] = output.logprobs
        names = self._names
        for key, value in row.passthrough.items():
            name = names[key] if key in names else self._name(key)
            if name is not None:
                members[name] = value
        return to_json(members).encode() + b"\n"

    def _name(self, key: str) -> str | None:
        """Return and remember the output name of a key seen for the first time."""
        name = None
        if self._columns.is_selected(key):
            taken = {*self._columns.base.names, *(known for known in self._names.values() if known)}
            name = free_name(key, taken)
        self._names[key] = name
        return name


class JsonlWriter(OutputWriter):
    """Writes a `.jsonl` file that appears complete or not at all."""

    def __init__(self, path: Path, columns: OutputColumns) -> None:
        self._encode: Callable[[OutputRow], bytes] = JsonlEncoder(columns).encode
        self._file = AtomicFile(path)

    def write(self, row: OutputRow) -> None:
        """Add a row; see `OutputWriter.write`."""
        self._file.write(self._encode(row))

    def close(self) -> None:
        """Make the file appear; see `OutputWriter.close`."""
        self._file.commit()

    def abort(self) -> None:
        """Remove the temporary file."""
        self._file.abort()


class JsonlStreamWriter(OutputWriter):
    """Writes a line per finished row to a stream and flushes it, for `-o -`."""

    def __init__(self, stream: BinaryIO, columns: OutputColumns) -> None:
        self._encode: Callable[[OutputRow], bytes] = JsonlEncoder(columns).encode
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
