"""JSONL: one JSON object a line, read as bytes.

Knows lines, byte order marks and which faults make a line no object; not what keys mean.
"""

from collections.abc import Generator, Sequence
from contextlib import closing

from nanobatch.io.input_row import Fields, InputRow, LineRow
from nanobatch.io.input_source import InputSource
from nanobatch.io.json_lines import decode_clean_objects
from nanobatch.io.json_text import JsonError, decode_json
from nanobatch.io.line_rows import count_line_rows, iter_line_rows
from nanobatch.io.lines import UTF8_BOM, require_utf8_text
from nanobatch.request import ErrorCode, RowError

SNIFF_BYTES = 4096


class JsonlRow(LineRow):
    """A line of JSONL; its payload is the line without byte order mark and outer white space."""

    __slots__ = ()

    @classmethod
    def decode_all(cls, rows: Sequence[InputRow]) -> None:
        """Decode rows that are clean; see `InputRow.decode_all`."""
        fresh = [row for row in rows if isinstance(row, JsonlRow) and row._fields is None]
        if fresh:
            objects = decode_clean_objects([row._payload for row in fresh])
            for row, fields in zip(fresh, objects, strict=True):
                row._fields = fields

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
    if source.spool is None:  # looking would wait for a pipe's producer; the first read checks
        with closing(source.open()) as reader:
            require_utf8_text(source, reader.read(SNIFF_BYTES))
    return source


def iter_jsonl(
    source: InputSource, *, first_index: int, start: int, base_offset_bytes: int
) -> Generator[InputRow, None, int]:
    """Yield a row for every line that is more than white space; see `readers.RowReader`."""
    return iter_line_rows(
        source,
        JsonlRow,
        _payloads,
        first_index=first_index,
        start=start,
        base_offset_bytes=base_offset_bytes,
    )


def count_jsonl(source: InputSource) -> int:
    """Return the number of rows; see `readers.RowCounter`."""
    return count_line_rows(source, _payloads)


def _payloads(lines: list[bytes]) -> list[bytes]:
    payloads = [line.strip() for line in lines]
    # A byte order mark stands also in mid-file, where `cat a b` leaves one.
    return [
        payload[len(UTF8_BOM) :].strip() if payload.startswith(UTF8_BOM) else payload
        for payload in payloads
    ]
