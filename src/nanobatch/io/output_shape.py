"""Which shape an output's rows have: flat, or OpenAI's.

Knows what was asked for and what rows are; not how either shape is written.
"""

from collections.abc import Iterable

from nanobatch.errors import OutputError
from nanobatch.io.input_row import InputRow
from nanobatch.io.rows import RowParser
from nanobatch.io.writers import OutputFormat
from nanobatch.job_config import OutputShape
from nanobatch.request import RowError


def settled_shape(asked: OutputShape | None, written: OutputFormat) -> OutputShape | None:
    """Return the shape where no row is needed to tell, else None.

    Args:
        asked: The shape that was asked for, or None.
        written: The format of the output.

    Raises:
        OutputError: OpenAI's shape was asked for in Parquet.
    """
    if written is OutputFormat.PARQUET:
        if asked == "openai":
            raise OutputError(
                "a Parquet output has flat rows, not OpenAI's shape",
                hint="name an output that ends in .jsonl, or leave out --output-shape openai",
            )
        return "flat"
    return asked


def shape_asked_for_by(row: InputRow, parser: RowParser) -> OutputShape | None:
    """Return OpenAI's shape for a batch line, flat for another row, None for one without fields."""
    if isinstance(row.fields(), RowError):
        return None
    return "openai" if parser.is_batch_line(row) else "flat"


def output_shape(
    asked: OutputShape | None, written: OutputFormat, *, rows: Iterable[InputRow], parser: RowParser
) -> OutputShape:
    """Return the shape of an output: what was asked for, else what the first parsable row is.

    Args:
        asked: The shape that was asked for, or None.
        written: The format of the output.
        rows: All rows of the job in order, also where a run writes only some of them; read up to
            the first that decodes, and only where it decides.
        parser: Tells batch lines.

    Raises:
        OutputError: OpenAI's shape was asked for in Parquet.
    """
    settled = settled_shape(asked, written)
    if settled is not None:
        return settled
    shapes = (shape_asked_for_by(row, parser) for row in rows)
    return next((shape for shape in shapes if shape is not None), "flat")
