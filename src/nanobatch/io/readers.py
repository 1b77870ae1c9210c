"""The formats that nanobatch reads, and the one stream of rows over all inputs of a job.

Knows which module reads which format. A new format is a line in `FORMATS`.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from nanobatch.io.csv_text import count_csv, iter_csv, sniff_csv
from nanobatch.io.input_row import InputRow
from nanobatch.io.input_source import InputSource
from nanobatch.io.jsonl import count_jsonl, iter_jsonl, sniff_lines
from nanobatch.io.parquet import count_parquet, iter_parquet, sniff_parquet
from nanobatch.io.text_lines import count_text, iter_text
from nanobatch.job_config import InputFormat


class RowReader(Protocol):
    """Yields rows of one input."""

    def __call__(
        self, source: InputSource, *, first_index: int, start: int, base_offset_bytes: int
    ) -> Generator[InputRow, None, int]:
        """Yield the rows with index `start` and later, lazily, and return the index after the last.

        Args:
            source: The input.
            first_index: Index of the input's first row in the job.
            start: Index of the first row wanted; the rows before are passed over as fast as the
                format allows.
            base_offset_bytes: Bytes of the inputs before this one.

        Raises:
            InputError: Standard input is not UTF-8 text.
            InputReadError: Reading failed.
        """
        ...


class RowCounter(Protocol):
    """Counts the rows of one input."""

    def __call__(self, source: InputSource, /) -> int:
        """Return how many rows the reader would yield.

        Raises:
            InputReadError: Reading failed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one format is recognised, sniffed and read.

    Attributes:
        suffixes: File name endings, lower case, without that of a compression.
        sniff: Opens an input and returns it completed, or raises InputError.
        iter_rows: Reads an input.
        count_rows: Counts an input's rows.
        is_compressible: Whether files may be compressed as a whole.
    """

    suffixes: tuple[str, ...]
    sniff: Callable[[InputSource], InputSource]
    iter_rows: RowReader
    count_rows: RowCounter
    is_compressible: bool = True


FORMATS: Mapping[InputFormat, Format] = {
    "jsonl": Format(
        suffixes=(".jsonl", ".ndjson"),
        sniff=sniff_lines,
        iter_rows=iter_jsonl,
        count_rows=count_jsonl,
    ),
    "parquet": Format(
        suffixes=(".parquet",),
        sniff=sniff_parquet,
        iter_rows=iter_parquet,
        count_rows=count_parquet,
        is_compressible=False,
    ),
    "csv": Format(suffixes=(".csv",), sniff=sniff_csv, iter_rows=iter_csv, count_rows=count_csv),
    "text": Format(
        suffixes=(".txt",), sniff=sniff_lines, iter_rows=iter_text, count_rows=count_text
    ),
}


def iter_rows(
    sources: Sequence[InputSource], *, start: int = 0, stop: int | None = None
) -> Iterator[InputRow]:
    """Yield rows start to stop of all inputs in order, numbered from 0 over all of them.

    Rows are read as they are asked for; memory does not grow with the inputs. Calling it again
    reads the same rows again, standard input from its spool. A row has the same index, whatever
    part is asked for.

    Args:
        sources: The inputs.
        start: Index of the first row; the rows before are not decoded.
        stop: Index after the last row; None goes on to the end.

    Raises:
        InputReadError: An input failed; the rows before were yielded.
    """
    return islice(_rows_from(sources, start), None if stop is None else max(0, stop - start))


def count_rows(sources: Sequence[InputSource]) -> int:
    """Return the number of rows of all inputs, in one pass over them.

    Raises:
        InputReadError: An input failed.
    """
    return sum(FORMATS[source.format].count_rows(source) for source in sources)


def _rows_from(sources: Sequence[InputSource], start: int) -> Iterator[InputRow]:
    next_index = base_offset_bytes = 0
    for source in sources:
        next_index = yield from FORMATS[source.format].iter_rows(
            source, first_index=next_index, start=start, base_offset_bytes=base_offset_bytes
        )
        base_offset_bytes += source.num_bytes_taken
