"""Where an input row and its outputs meet again, on the way to a writer.

Knows which parts of an input row an output needs; not how they are written.
"""

from collections.abc import Callable, Mapping

from nanobatch.io.input_row import InputRow
from nanobatch.io.output_row import NO_PASSTHROUGH, OutputRow
from nanobatch.io.rows import RowParser
from nanobatch.io.writers import OutputFormat
from nanobatch.job_config import OutputShape
from nanobatch.request import ErrorCode, RequestOutputs


class RowJoiner:
    """Joins input rows and outputs: id, place of an error, columns that pass through.

    Args:
        parser: Knows ids and pass-through columns.
        selects_by_name: Any column may pass, because the output's columns name those that do.
        written_format: What the rows are for: a Parquet writer copies Arrow columns itself, so
            that a Parquet row's values need not become Python objects.
        shape: What the rows are for: OpenAI's shape tells chats from completions.
    """

    def __init__(
        self,
        parser: RowParser,
        *,
        selects_by_name: bool,
        written_format: OutputFormat = OutputFormat.JSONL,
        shape: OutputShape = "flat",
    ) -> None:
        self._row_id = parser.row_id
        self._id_and_passthrough = (
            parser.id_and_columns if selects_by_name else parser.id_and_passthrough
        )
        self._copies_arrow = written_format is OutputFormat.PARQUET
        self._is_chat: Callable[[InputRow], bool] | None = (
            parser.is_chat if shape == "openai" else None
        )

    def join(self, row: InputRow, outputs: RequestOutputs) -> OutputRow:
        """Return the output row of an input row."""
        passthrough: Mapping[str, object] = NO_PASSTHROUGH
        arrow_row = row.arrow_row if self._copies_arrow else None
        if arrow_row is None:
            row_id, passthrough = self._id_and_passthrough(row)
        else:
            row_id = self._row_id(row)
        location = None
        for output in outputs:
            if output.error is not None:
                location = row.location
                if output.error.code is ErrorCode.INVALID_UTF8:
                    arrow_row = None  # no reader would take a file with such bytes
                break
        return OutputRow(
            row_id,
            outputs,
            location,
            passthrough,
            arrow_row,
            self._is_chat is not None and self._is_chat(row),
        )
