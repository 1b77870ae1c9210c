"""The formats that nanobatch reads, and the one stream of rows over all inputs of a job.

Knows which module reads which format. A new format is a line in `FORMATS`.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nanobatch.io.csv_text import iter_csv, sniff_csv
from nanobatch.io.input_row import InputRow
from nanobatch.io.input_source import InputSource
from nanobatch.io.jsonl import iter_jsonl, sniff_lines
from nanobatch.io.parquet import iter_parquet, sniff_parquet
from nanobatch.io.text_lines import iter_text
from nanobatch.job_config import InputFormat


class RowReader(Protocol):
    """Yields the rows of one input."""

    def __call__(
        self, source: InputSource, row_indices: Iterator[int], *, base_offset_bytes: int
    ) -> Iterator[InputRow]:
        """Yield rows lazily; see `jsonl.iter_jsonl`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one format is recognised, sniffed and read.

    Attributes:
        suffixes: File name endings, lower case.
        sniff: Opens an input and returns it completed, or raises InputError.
        iter_rows: Reads an input.
    """

    suffixes: tuple[str, ...]
    sniff: Callable[[InputSource], InputSource]
    iter_rows: RowReader


FORMATS: Mapping[InputFormat, Format] = {
    "jsonl": Format(suffixes=(".jsonl", ".ndjson"), sniff=sniff_lines, iter_rows=iter_jsonl),
    "parquet": Format(suffixes=(".parquet",), sniff=sniff_parquet, iter_rows=iter_parquet),
    "csv": Format(suffixes=(".csv",), sniff=sniff_csv, iter_rows=iter_csv),
    "text": Format(suffixes=(".txt",), sniff=sniff_lines, iter_rows=iter_text),
}


def iter_rows(
    sources: Sequence[InputSource], *, start: int = 0, stop: int | None = None
) -> Iterator[InputRow]:
    """Yield rows start to stop of all inputs in order, numbered from 0 over all of them.

    Rows are read as they are asked for; memory does not grow with the inputs. Calling it again
    reads the same rows again, standard input from its spool.

    Raises:
        InputReadError: An input failed; the rows before were yielded.
    """
    return itertools.islice(_all_rows(sources), start, stop)


def count_rows(sources: Sequence[InputSource]) -> int:
    """Return the number of rows of all inputs, in one pass over them.

    Raises:
        InputReadError: An input failed.
    """
    return sum(1 for _ in _all_rows(sources))


def _all_rows(sources: Sequence[InputSource]) -> Iterator[InputRow]:
    row_indices = itertools.count()
    base_offset_bytes = 0
    for source in sources:
        yield from FORMATS[source.format].iter_rows(
            source, row_indices, base_offset_bytes=base_offset_bytes
        )
        size_bytes = source.size_bytes if source.spool is None else source.spool.size_bytes
        base_offset_bytes += size_bytes or 0
