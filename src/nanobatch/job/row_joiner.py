"""Where an input row and its outputs meet again, on the way to a writer.

Knows which parts of an input row an output needs; not how they are written.
"""

from collections.abc import Callable, Mapping, Sequence

from nanobatch.io.columns import OutputColumns
from nanobatch.io.input_row import InputRow
from nanobatch.io.journal_payload import Sample
from nanobatch.io.output_lines import ArrowRow, JoinedRows, OutputLines, lines_of_samples
from nanobatch.io.output_row import NO_PASSTHROUGH, OutputRow
from nanobatch.io.rows import RowParser
from nanobatch.io.writers import OutputFormat
from nanobatch.job_config import OutputShape
from nanobatch.request import RequestOutputs


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
        self._row_ids = parser.row_ids
        self._id_and_passthrough = (
            parser.id_and_columns if selects_by_name else parser.id_and_passthrough
        )
        self._ids_and_passthrough = (
            parser.ids_and_columns if selects_by_name else parser.ids_and_passthrough
        )
        self._copies_arrow = written_format is OutputFormat.PARQUET
        self._is_chat: Callable[[InputRow], bool] | None = (
            parser.is_chat if shape == "openai" else None
        )

    def lines(
        self,
        rows: Sequence[InputRow],
        samples: Sequence[Sequence[Sample]],
        *,
        columns: OutputColumns,
    ) -> OutputLines:
        """Return the lines of a flat output that input rows and their samples make."""
        arrow_rows: Sequence[ArrowRow | None] = ()
        kept: Sequence[tuple[str | None, Mapping[str, object]]]
        if self._copies_arrow:
            arrow_rows = [row.arrow_row for row in rows]
        if arrow_rows and None not in arrow_rows:
            kept = [(row_id, NO_PASSTHROUGH) for row_id in self._row_ids(rows)]
        else:
            kept = self._ids_and_passthrough(rows)
        joined = JoinedRows(
            row_indices=[row.row_index for row in rows],
            ids=[row_id for row_id, _ in kept],
            passthrough=[passed for _, passed in kept],
            arrow_rows=arrow_rows or [None] * len(rows),
            location_of=lambda place: rows[place].location,
        )
        return lines_of_samples(
            joined,
            samples,
            with_token_ids=columns.has_token_ids,
            with_logprobs=columns.has_logprobs,
        )

    def join(self, row: InputRow, outputs: RequestOutputs) -> OutputRow:
        """Return the output row of an input row, for what is written row by row as JSON."""
        row_id, passthrough = self._id_and_passthrough(row)
        has_error = any(output.error is not None for output in outputs)
        return OutputRow(
            row_id,
            outputs,
            location=row.location if has_error else None,
            passthrough=passthrough,
            is_chat=self._is_chat is not None and self._is_chat(row),
        )
