"""JSONL: one JSON object a line, read as bytes.

Knows lines, byte order marks and which faults make a line no object; not what keys mean.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nanobatch.io.input_row import Fields, InputRow, LineRow
from nanobatch.io.input_source import InputSource
from nanobatch.io.json_text import JsonError, decode_json
from nanobatch.io.lines import UTF8_BOM, iter_lines, require_utf8_text
from nanobatch.request import ErrorCode, RowError, RowIndex

SNIFF_BYTES = 4096


class JsonlRow(LineRow):
    """A line of JSONL; its payload is the line without byte order mark and outer white space."""

    __slots__ = ()

    def _decode(self) -> Fields | RowError:
        try:
            decoded = decode_json(self._payload.decode())
        except UnicodeDecodeError as error:
            return invalid_utf8(error)
        except JsonError as error:
            return RowError(code=ErrorCode.INVALID_JSON, message=str(error))
        if not isinstance(decoded.value, dict):
            kind = json_kind(decoded.value)
            return RowError(
                code=ErrorCode.NOT_AN_OBJECT, message=f"the line is {kind}, not an object"
            )
        self.flaws = decoded.flaws
        self.num_surrogates += decoded.num_surrogates
        return decoded.value


def invalid_utf8(error: UnicodeDecodeError) -> RowError:
    """Return the fault of a row whose bytes are no UTF-8, naming the first bad byte."""
    return RowError(
        code=ErrorCode.INVALID_UTF8,
        message=f"not valid UTF-8: byte 0x{error.object[error.start]:02x} at {error.start:,}",
    )


def json_kind(value: object) -> str:
    """Return what JSON calls a decoded value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list | tuple) else "an object"


def sniff_lines(source: InputSource) -> InputSource:
    """Open a JSONL or text file and look at its start; any content, also none, is valid.

    Raises:
        InputError: The bytes are another encoding or a container.
        OSError: The file cannot be read.
    """
    if source.spool is not None:
        return source  # looking would wait for the producer; the first read checks
    with Path(source.path).open("rb") as stream:
        require_utf8_text(source, stream.read(SNIFF_BYTES))
        return replace(source, size_bytes=stream.seek(0, 2))


def iter_jsonl(
    source: InputSource, row_indices: Iterator[int], *, base_offset_bytes: int
) -> Iterator[InputRow]:
    """Yield a row for every line that is more than white space.

    Args:
        source: The input.
        row_indices: Where the next row's index is drawn from, over all inputs.
        base_offset_bytes: Bytes of the inputs before this one.

    Raises:
        InputError: Standard input is not UTF-8 text.
        InputReadError: Reading failed.
    """
    offset_bytes = base_offset_bytes
    for line_number, line in enumerate(iter_lines(source), 1):
        offset_bytes += len(line) + 1
        payload = line.strip()
        if payload.startswith(UTF8_BOM):  # also in mid-file, where `cat a b` leaves one
            payload = payload[len(UTF8_BOM) :].strip()
        if payload:
            row_index = RowIndex(next(row_indices))
            yield JsonlRow(row_index, source, line_number, offset_bytes, payload)
