r"""CSV: a header, then records of text fields, quoted line breaks included.

Knows records and where they start; not what columns mean. Lines are split on `\n` before the
csv module sees them, and each record keeps its raw bytes, so that a record with bad bytes or a
wrong number of fields is one bad row and its neighbours are untouched.

A stray quote would swallow the rows after it. Quoting is therefore strict: a record that is not
valid CSV costs its first line only, and the lines that it had swallowed are read again.
"""

import csv
import sys
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from nanobatch.errors import ConfigError, InputError
from nanobatch.io.input_row import Fields, InputRow
from nanobatch.io.input_source import InputSource
from nanobatch.io.jsonl import invalid_utf8, sniff_lines
from nanobatch.io.lines import UTF8_BOM, LineReader
from nanobatch.request import ErrorCode, RowError, RowIndex

MAX_QUOTED_BYTES = 1 << 24
"""How far a record may go on over line ends. Single lines have no limit, but lines that an unclosed
quote swallows are held to be read again; no prompt is this long."""

_WRITTEN_TAB = r"\t"


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
    r"""Read the header and return the source with its columns.

    A column without a name (pandas writes its index so) is called `column_1`, by its place. The
    delimiter `\t`, two characters as a shell hands it over, is a tab.

    Raises:
        InputError: There is no header, it is not UTF-8, or it names a column twice.
        ConfigError: The delimiter is not one character.
        OSError: The file cannot be read.
    """
    if source.delimiter == _WRITTEN_TAB:
        source = replace(source, delimiter="\t")
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
    source: InputSource, *, first_index: int, start: int, base_offset_bytes: int
) -> Generator[InputRow, None, int]:
    """Yield a row for every record after the header; see `readers.RowReader`.

    Lines of white space only are no rows. The csv module's field limit is lifted for the whole
    process, as it offers no other way.
    """
    row_index = first_index
    records = _iter_records(source)
    next(records, None)
    for record in records:
        if row_index >= start:
            offset_bytes = base_offset_bytes + record.end_bytes
            row = CsvRow(RowIndex(row_index), source, record.line, offset_bytes)
            yield row.hold(record.payload, record.values)
        row_index += 1
    return row_index


def count_csv(source: InputSource) -> int:
    """Return the number of records after the header; see `readers.RowCounter`."""
    records = _iter_records(source)
    next(records, None)
    return sum(1 for _ in records)


class _Record(NamedTuple):
    line: int
    end_bytes: int
    payload: bytes
    values: list[str] | RowError


class _LineFeed:
    """Hands lines to the csv module, remembers those of the record being read, takes them back.

    Lines that an unclosed quote swallowed were inside of quotes at each line end. A record that
    is read anew from one of them and is open at its end is in the same state, so it would fail at
    the same place: it must stand alone. Hence no line is read more than twice.
    """

    def __init__(self, source: InputSource) -> None:
        self._reader = LineReader(source)
        self._lines = iter(self._reader)
        self._is_compressed = source.codec is not None
        self._again: deque[bytes] = deque()
        self._num_alone = 0
        self._record: list[bytes] = []
        self._record_bytes = 0
        self._is_alone = False
        self._is_cut = False
        self.num_lines = 0
        self._num_bytes = 0

    @property
    def end_bytes(self) -> int:
        """Bytes of the input up to the last line handed out; of a compressed one as read so far."""
        return self._reader.num_bytes_read if self._is_compressed else self._num_bytes

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self._is_cut = bool(self._record)
        if self._is_cut and (self._is_alone or self._record_bytes > MAX_QUOTED_BYTES):
            raise StopIteration
        raw = self._again.popleft() if self._again else next(self._lines)
        self._is_cut = False
        self._num_bytes += len(raw) + 1
        if self.num_lines == 0:
            raw = raw.removeprefix(UTF8_BOM)
        self.num_lines += 1
        self._is_alone = self._num_alone > 0
        self._num_alone -= self._is_alone
        self._record.append(raw)
        self._record_bytes += len(raw) + 1
        # Bad bytes must not stop the csv module; the record's raw bytes are checked later.
        return raw.decode(errors="surrogateescape") + "\n"

    def take_record(self) -> list[bytes]:
        """Return the raw lines handed out since the last call."""
        record, self._record = self._record, []
        self._record_bytes = 0
        return record

    def take_first_line(self) -> list[bytes]:
        """Return the first line handed out since the last call; the others come again."""
        first, *others = self.take_record()
        self._again.extendleft(reversed(others))
        # The line that showed the fault began inside of quotes, but did not end there.
        self._num_alone += len(others) if self._is_cut else max(0, len(others) - 1)
        self.num_lines -= len(others)
        self._num_bytes -= sum(len(raw) + 1 for raw in others)
        return [first]

    def fault(self, error: csv.Error) -> RowError:
        """Return what is wrong with the record being read, which `error` ended."""
        if self._is_cut:
            return _bad_row("a quoted field is not closed")
        where = f" on line {self.num_lines:,}" if len(self._record) > 1 else ""
        hint = "; is a quote before it not closed?" if where else ""
        return _bad_row(f"not valid CSV: {error}{where}{hint}")


def _iter_records(source: InputSource) -> Iterator[_Record]:
    csv.field_size_limit(sys.maxsize)
    feed = _LineFeed(source)
    reader = csv.reader(feed, delimiter=source.delimiter, strict=True)
    while True:
        line = feed.num_lines + 1
        values: list[str] | RowError
        try:
            values = next(reader)
            raw = feed.take_record()
        except StopIteration:
            return
        except csv.Error as error:
            values = feed.fault(error)
            raw = feed.take_first_line()
        payload = b"\n".join(raw).removesuffix(b"\r")
        if payload.strip():
            yield _Record(line, feed.end_bytes, payload, values)


def _bad_row(message: str) -> RowError:
    return RowError(code=ErrorCode.BAD_ROW, message=message)
