r"""CSV: a header, then records of text fields, quoted line breaks included.

Knows records and where they start; not what columns mean. Lines are split on `\n` before the
csv module sees them, and each record keeps its raw bytes, so that a record with bad bytes or a
wrong number of fields is one bad row and its neighbours are untouched.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import replace

from xxhash import xxh3_64_intdigest

from nanobatch.errors import ConfigError, InputError
from nanobatch.io.input_row import Fields, InputRow
from nanobatch.io.input_source import InputSource
from nanobatch.io.jsonl import invalid_utf8, sniff_lines
from nanobatch.io.lines import UTF8_BOM, iter_lines
from nanobatch.request import ErrorCode, RowError, RowIndex


class CsvRow(InputRow):
    """A record; its payload is its raw bytes, beside the fields that they hold."""

    __slots__ = ("_payload", "_values")

    def __init__(
        self, row_index: RowIndex, source: InputSource, line: int, offset_bytes: int
    ) -> None:
        super().__init__(row_index, source, line, offset_bytes)
        self._payload = b""
        self._values: list[str] | RowError = []

    def hold(self, payload: bytes, values: list[str] | RowError) -> "CsvRow":
        """Set what the record consists of and return the row."""
        self._payload = payload
        self._values = values
        return self

    @property
    def payload_hash(self) -> int:
        """xxh3 of the record's bytes, 64 bits."""
        return xxh3_64_intdigest(self._payload)

    def _decode(self) -> Fields | RowError:
        if isinstance(self._values, RowError):
            return self._values
        try:
            self._payload.decode()
        except UnicodeDecodeError as error:
            return invalid_utf8(error)
        columns = self.source.columns or ()
        if len(self._values) != len(columns):
            return _bad_row(f"row has {len(self._values)} fields; the header has {len(columns)}")
        return dict(zip(columns, self._values, strict=True))


def sniff_csv(source: InputSource) -> InputSource:
    """Read the header and return the source with its columns.

    A column without a name (pandas writes its index so) is called `column_1`, by its place.

    Raises:
        InputError: There is no header, it is not UTF-8, or it names a column twice.
        ConfigError: The delimiter is not one character.
        OSError: The file cannot be read.
    """
    if len(source.delimiter) != 1 or source.delimiter in '"\r\n':
        raise ConfigError(f"delimiter is {source.delimiter!r}; it must be one character")
    source = sniff_lines(source)
    record = next(_iter_records(source), None)
    if record is None:
        raise InputError(
            f"{source.name} has no header", hint="the first line of a CSV names its columns"
        )
    if isinstance(record.values, RowError):
        raise InputError(f"{source.name} has no readable header: {record.values.message}")
    try:
        record.payload.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"the header of {source.name} is {invalid_utf8(error).message}") from None
    columns = tuple(name or f"column_{place}" for place, name in enumerate(record.values, 1))
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{source.name} has two columns named {twice!r}", hint="rename one")
    return replace(source, columns=columns)


def iter_csv(
    source: InputSource, row_indices: Iterator[int], *, base_offset_bytes: int
) -> Iterator[InputRow]:
    """Yield a row for every record after the header; see `jsonl.iter_jsonl`.

    Lines of white space only are no rows. The csv module's field limit is lifted for the whole
    process, as it offers no other way.
    """
    records = _iter_records(source)
    next(records, None)
    for record in records:
        offset_bytes = base_offset_bytes + record.end_bytes
        row = CsvRow(RowIndex(next(row_indices)), source, record.line, offset_bytes)
        yield row.hold(record.payload, record.values)


class _Record:
    __slots__ = ("end_bytes", "line", "payload", "values")

    def __init__(self, line: int, payload: bytes, values: list[str] | RowError) -> None:
        self.line = line
        self.payload = payload
        self.values = values
        self.end_bytes = 0


class _LineFeed:
    """Hands lines to the csv module and remembers the raw ones of the record being read."""

    def __init__(self, source: InputSource) -> None:
        self._lines = iter_lines(source)
        self.num_lines = 0
        self.num_bytes = 0
        self._raw: list[bytes] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        raw = next(self._lines)
        self.num_bytes += len(raw) + 1
        if self.num_lines == 0:
            raw = raw.removeprefix(UTF8_BOM)
        self.num_lines += 1
        self._raw.append(raw)
        # Bad bytes must not stop the csv module; the record's raw bytes are checked later.
        return raw.decode(errors="surrogateescape") + "\n"

    def take_raw(self) -> list[bytes]:
        """Return the raw lines handed out since the last call."""
        raw, self._raw = self._raw, []
        return raw


def _iter_records(source: InputSource) -> Iterator[_Record]:
    csv.field_size_limit(sys.maxsize)
    feed = _LineFeed(source)
    reader = csv.reader(feed, delimiter=source.delimiter)
    held: _Record | None = None
    while True:
        first_line = feed.num_lines + 1
        values: list[str] | RowError
        try:
            values = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            values = _bad_row(f"not valid CSV: {error}")
        raw = b"\n".join(feed.take_raw()).removesuffix(b"\r")
        if not raw.strip():
            continue
        if held is not None:
            yield held
        held = _Record(first_line, raw, values)
        held.end_bytes = feed.num_bytes
    if held is not None:
        # Only the last record can hold a quote that nothing closes: it swallowed the rest.
        yield _checked_last(held, source.delimiter)


def _checked_last(record: _Record, delimiter: str) -> _Record:
    if isinstance(record.values, list) and b'"' in record.payload:
        lines = record.payload.decode(errors="surrogateescape").split("\n")
        rows = csv.reader([f"{line}\n" for line in (*lines, "one more")], delimiter=delimiter)
        if len(list(rows)) == 1:
            record.values = _bad_row("a quoted field is not closed before the end of the file")
    return record


def _bad_row(message: str) -> RowError:
    return RowError(code=ErrorCode.BAD_ROW, message=message)
