"""One row of an input as it was read: where it stands, its raw payload, its fields when asked.

Knows nothing of prompts or parameters (`nanobatch.io.rows` does), nor of how a format finds its
rows. A row that finished in an earlier run is only hashed: fields are decoded on first use.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Protocol

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from nanobatch.io.input_source import InputSource
from nanobatch.request import RowError, RowIndex

Fields = dict[str, object]
"""A row's top-level keys or columns, in the order of the input."""

NO_FLAWS: Mapping[str, str] = {}


class Columns(Protocol):
    """Values of many rows, column by column, all of them readable."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        ...

    @property
    def num_rows(self) -> int:
        """Values of each column."""
        ...

    def column(self, name: str) -> list[object]:
        """Return the values of a column."""
        ...


class InputRow:
    """A row and its place. Each format has a subclass that knows its payload.

    Not frozen: decoding is lazy and remembered. Nobody else changes a row.

    Attributes:
        row_index: Place among the job's rows, from 0.
        source: The input that the row comes from.
        line: Physical line on which the row starts, from 1; for Parquet the row's number, from 1.
        offset_bytes: Bytes of all the job's inputs that are consumed up to and with this row.
        num_surrogates: Lone surrogates replaced by U+FFFD, of what was decoded so far.
        flaws: Why the value of a top-level key is not to be trusted (a duplicate key, NaN, an
            integer too long to parse), by key. The value in `fields()` is then the last
            duplicate, None for NaN, text for the integer: good enough to pass through only.
    """

    __slots__ = (
        "_fields",
        "flaws",
        "line",
        "num_surrogates",
        "offset_bytes",
        "row_index",
        "source",
    )

    row_index: RowIndex
    source: InputSource
    line: int
    offset_bytes: int
    num_surrogates: int
    flaws: Mapping[str, str]
    _fields: Fields | RowError | None

    def __init__(
        self, row_index: RowIndex, source: InputSource, line: int, offset_bytes: int
    ) -> None:
        self.row_index = row_index
        self.source = source
        self.line = line
        self.offset_bytes = offset_bytes
        self.num_surrogates = 0
        self.flaws = NO_FLAWS
        self._fields = None

    @property
    def path(self) -> str:
        """The input's name as messages show it."""
        return self.source.name

    @property
    def location(self) -> str:
        """`file:line`, as error messages begin."""
        return f"{self.source.name}:{self.line}"

    @property
    def payload_hash(self) -> int:
        """xxh3 of the raw payload, 64 bits: the same in every run, whatever the other rows are."""
        raise NotImplementedError

    @property
    def arrow_row(self) -> tuple[pa.RecordBatch, int] | None:
        """The record batch that holds the row and its place there; None unless Parquet."""
        return None

    @property
    def columns(self) -> tuple[Columns, int] | None:
        """The columns that the row shares with others, and its place there; None without such."""
        return None

    @classmethod
    def decode_all(cls, rows: Sequence["InputRow"]) -> None:
        """Decode rows of this class together, as far as that is cheaper than one by one.

        Changes nothing but the time that their `fields` take.
        """

    def fields(self) -> Fields | RowError:
        """Return the row's top-level fields, or why it has none. Decoded on the first call.

        Callers do not change the result: it is remembered.
        """
        if self._fields is None:
            self._fields = self._decode()
        return self._fields

    def _decode(self) -> Fields | RowError:
        raise NotImplementedError


def decode_together(rows: Sequence[InputRow]) -> None:
    """Decode rows whose `fields` will be asked for: together it costs less."""
    for _, group in groupby(rows, type):
        alike = list(group)
        alike[0].decode_all(alike)


class LineRow(InputRow):
    """A row that is one line of an input; subclasses say what of the line is its payload."""

    __slots__ = ("_payload",)

    def __init__(
        self, row_index: RowIndex, source: InputSource, line: int, offset_bytes: int, payload: bytes
    ) -> None:
        # Not left to the class above: a call more would be a third of what a row costs.
        self.row_index = row_index
        self.source = source
        self.line = line
        self.offset_bytes = offset_bytes
        self.num_surrogates = 0
        self.flaws = NO_FLAWS
        self._fields = None
        self._payload = payload

    @property
    def payload_hash(self) -> int:
        """xxh3 of the line, 64 bits."""
        return xxh3_64_intdigest(self._payload)
