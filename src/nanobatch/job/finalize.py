"""From a complete journal to the output: every row of the inputs again, in order, with its answer.

Pass-through values are read from the inputs, not kept in the journal. Memory does not grow with
the job. Interrupted anywhere, nothing appears; the same line finalises again.
"""

import json
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from nanobatch import __version__
from nanobatch.errors import JournalError
from nanobatch.io.column_typer import MAX_TYPED_ROWS, ColumnTyper
from nanobatch.io.columns import OutputColumns, merge_schemas, output_columns
from nanobatch.io.durable import remove_stale_temporaries, require_free_bytes
from nanobatch.io.input_row import InputRow
from nanobatch.io.input_source import total_bytes
from nanobatch.io.journal_index import JournalIndex
from nanobatch.io.journal_segment import journal_bytes
from nanobatch.io.output_row import OutputRow
from nanobatch.io.readers import iter_rows
from nanobatch.io.rows import RowParser
from nanobatch.io.writers import OutputFormat, open_writer, output_format
from nanobatch.job.fingerprint import changed_row_error
from nanobatch.job.plan import JobPlan
from nanobatch.request import RequestOutput

logger = logging.getLogger(__name__)

PORTION_ROWS = 1024

OnFraction = Callable[[float], None]


def write_output(
    plan: JobPlan, index: JournalIndex, parser: RowParser, *, on_fraction: OnFraction
) -> None:
    """Write the output of a job whose rows are all in the journal.

    Args:
        plan: The job.
        index: Its journal.
        parser: Knows ids and pass-through columns.
        on_fraction: Called now and then with the share that is written, 0 to 1; may raise.

    Raises:
        ResumeMismatchError: An input has changed since its rows were answered.
        JournalError: A row has no record.
        StorageError: The output cannot be written; the journal is kept.
    """
    output = Path(plan.config.output)
    remove_stale_temporaries(output)
    require_free_bytes(output, journal_bytes(index.folder))
    columns = job_columns(plan, parser)
    joiner = RowJoiner(
        parser,
        selects_by_name=plan.config.columns is not None,
        copies_arrow=output_format(output) is OutputFormat.PARQUET,
    )
    num_bytes = total_bytes(plan.sources) or 1
    with open_writer(output, columns, metadata=_metadata(plan)) as writer:
        for row in iter_rows(plan.sources):
            writer.write(joiner.join(row, _recorded_output(row, index)))
            if row.row_index % PORTION_ROWS == 0:
                on_fraction(min(1.0, row.offset_bytes / num_bytes))
        on_fraction(1.0)


def job_columns(plan: JobPlan, parser: RowParser) -> OutputColumns:
    """Return the output's columns: ours, then those that pass through with their types.

    Raises:
        OutputError: `--columns` names a column that no input has.
    """
    config = plan.config
    schemas = {source.arrow_schema for source in plan.sources}
    return output_columns(
        _passthrough_columns(plan, parser),
        selected=config.columns,
        has_extra=None in schemas or len(schemas) > 1,
        include_token_ids=config.include_token_ids,
        include_logprobs=config.engine.return_logprobs,
    )


class RowJoiner:
    """Joins input rows and outputs: id, place of an error, columns that pass through.

    Args:
        parser: Knows ids and pass-through columns.
        selects_by_name: Any column may pass, because the output's columns name those that do.
        copies_arrow: The writer copies Arrow columns itself, so that a Parquet row's values
            need not become Python objects.
    """

    def __init__(self, parser: RowParser, *, selects_by_name: bool, copies_arrow: bool) -> None:
        self._parser = parser
        self._passthrough = parser.columns if selects_by_name else parser.passthrough
        self._copies_arrow = copies_arrow

    def join(self, row: InputRow, output: RequestOutput) -> OutputRow:
        """Return the output row of an input row."""
        message = None if output.error is None else f"{row.location}: {output.error.message}"
        row_id = self._parser.row_id(row)
        if self._copies_arrow and row.arrow_row is not None:
            return OutputRow(row_id, output, error_message=message, arrow_row=row.arrow_row)
        return OutputRow(row_id, output, error_message=message, passthrough=self._passthrough(row))


def _recorded_output(row: InputRow, index: JournalIndex) -> RequestOutput:
    if not index.has(row.row_index):
        raise JournalError(f"{row.location} has no record", hint="run the same line again")
    record = index.read(row.row_index)
    if record.payload_hash != row.payload_hash:
        raise changed_row_error(row)
    return record.outputs[0]


def _passthrough_columns(plan: JobPlan, parser: RowParser) -> pa.Schema:
    """Return the columns that may pass through: Parquet's with their own types, CSV's as text.

    Those of inputs that declare nothing are typed by the job's first rows.
    """
    sources = plan.sources
    selects_by_name = plan.config.columns is not None
    arrow_types = merge_schemas(s.arrow_schema for s in sources if s.arrow_schema is not None)
    fields: dict[str, pa.DataType] = {}
    for source in sources:
        names: Sequence[str] = source.columns or ()
        if names and not selects_by_name:
            names = parser.passthrough_names(names, next(iter_rows([source]), None))
        for name in names:
            is_arrow = name in arrow_types.names
            fields.setdefault(name, arrow_types.field(name).type if is_arrow else pa.large_string())
    if any(source.columns is None for source in sources):
        for field in _observed_columns(plan, parser):
            fields.setdefault(field.name, field.type)
    return pa.schema(list(fields.items()))


def _observed_columns(plan: JobPlan, parser: RowParser) -> pa.Schema:
    """Type the pass-through columns by the job's first rows."""
    typer = ColumnTyper()
    selected = plan.config.columns
    for row in islice(iter_rows(plan.sources), MAX_TYPED_ROWS):
        typer.observe(parser.passthrough(row) if selected is None else parser.columns(row))
    schema = typer.schema()
    for name in selected or ():
        if name not in schema.names:
            logger.warning("--columns names %r, which is in none of the first rows", name)
    return schema


def _metadata(plan: JobPlan) -> dict[str, str]:
    return {
        "nanobatch.version": __version__,
        "nanobatch.model": plan.model.name,
        "nanobatch.job": json.dumps(plan.fingerprint),
    }
