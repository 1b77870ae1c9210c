"""Plain text: a prompt a line.

Knows lines only. The line is the column `text`, so that a template can name it.
"""

from collections.abc import Iterator

from nanobatch.io.input_row import Fields, InputRow, LineRow
from nanobatch.io.input_source import InputSource
from nanobatch.io.jsonl import invalid_utf8
from nanobatch.io.lines import UTF8_BOM, iter_lines
from nanobatch.request import RowError, RowIndex

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
    source: InputSource, row_indices: Iterator[int], *, base_offset_bytes: int
) -> Iterator[InputRow]:
    """Yield a row for every line that is more than white space; see `jsonl.iter_jsonl`."""
    offset_bytes = base_offset_bytes
    for line_number, line in enumerate(iter_lines(source), 1):
        offset_bytes += len(line) + 1
        payload = line.removeprefix(UTF8_BOM).removesuffix(b"\r")
        if payload.strip():
            row_index = RowIndex(next(row_indices))
            yield TextRow(row_index, source, line_number, offset_bytes, payload)
