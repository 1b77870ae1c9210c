"""Plain text: a prompt a line.

Knows lines only. The line is the column `text`, so that a template can name it.
"""

from collections.abc import Generator

from nanobatch.io.input_row import Fields, InputRow, LineRow
from nanobatch.io.input_source import InputSource
from nanobatch.io.jsonl import invalid_utf8
from nanobatch.io.line_rows import count_line_rows, iter_line_rows
from nanobatch.io.lines import UTF8_BOM
from nanobatch.request import RowError

TEXT_COLUMN = "text"


class TextRow(LineRow):
    """A line of text; its payload is the line without byte order mark and line end."""

    __slots__ = ()

    def _decode(self) -> Fields | RowError:
        try:
            return {TEXT_COLUMN: self._payload.decode()}
        except UnicodeDecodeError as error:
            return invalid_utf8(error)


def iter_text(
    source: InputSource, *, first_index: int, start: int, base_offset_bytes: int
) -> Generator[InputRow, None, int]:
    """Yield a row for every line that is more than white space; see `readers.RowReader`."""
    return iter_line_rows(
        source,
        TextRow,
        _payloads,
        first_index=first_index,
        start=start,
        base_offset_bytes=base_offset_bytes,
    )


def count_text(source: InputSource) -> int:
    """Return the number of rows; see `readers.RowCounter`."""
    return count_line_rows(source, _payloads)


def _payloads(lines: list[bytes]) -> list[bytes]:
    payloads = [line.removeprefix(UTF8_BOM).removesuffix(b"\r") for line in lines]
    return [b"" if payload.isspace() else payload for payload in payloads]
