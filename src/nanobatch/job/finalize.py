"""From a complete journal to the output: every row of the inputs again, in order, with its answer.

Pass-through values are read from the inputs, not kept in the journal. Memory does not grow with
the job. Interrupted anywhere, nothing appears; the same line finalises again.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path

import pyarrow as pa

from nanobatch import __version__
from nanobatch.io.column_typer import MAX_TYPED_ROWS, ColumnTyper
from nanobatch.io.columns import OutputColumns, merge_schemas, output_columns
from nanobatch.io.durable import remove_stale_temporaries, require_free_bytes
from nanobatch.io.input_row import InputRow, decode_together
from nanobatch.io.input_source import total_bytes
from nanobatch.io.journal_index import JournalIndex
from nanobatch.io.journal_segment import journal_bytes
from nanobatch.io.output_openai import OpenAiJob, job_key
from nanobatch.io.output_shape import output_shape
from nanobatch.io.readers import iter_rows
from nanobatch.io.rows import RowParser
from nanobatch.io.writers import open_writer, output_format
from nanobatch.job.answered_rows import AnsweredRows
from nanobatch.job.output_place import written_format
from nanobatch.job.output_plan import OutputPlan
from nanobatch.job.row_joiner import RowJoiner
from nanobatch.job.row_stream import FileRows
from nanobatch.job_config import JobConfig, OutputShape

logger = logging.getLogger(__name__)

PORTION_ROWS = 512

OnFraction = Callable[[float], None]


class OrderedOutput:
    """The rows of a run in input order, each with its answer from the journal.

    Args:
        plan: The run.
        index: Its journal.
        parser: Knows ids and pass-through columns.
        before_appearing: Called before a file appears under its name; raises if the run may not
            write any more.
    """

    def __init__(
        self,
        plan: OutputPlan,
        index: JournalIndex,
        parser: RowParser,
        *,
        before_appearing: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._index = index
        self._parser = parser
        self._before_appearing = before_appearing

    @cached_property
    def _columns(self) -> OutputColumns:
        return job_columns(self._plan, self._parser)

    @cached_property
    def _shape(self) -> OutputShape:
        config = self._plan.config
        return output_shape(
            config.output_shape,
            written_format(config),
            rows=iter_rows(self._plan.sources),
            parser=self._parser,
        )

    def rows(self) -> Iterator[InputRow]:
        """Yield the input rows again, from the first."""
        return iter_rows(self._plan.sources, start=self._plan.rows.first, stop=self._plan.rows.stop)

    @contextmanager
    def open(self, path: Path) -> Iterator[AnsweredRows]:
        """Write one file, which appears when the block ends.

        Args:
            path: Where it appears.

        Yields:
            What adds rows: it is called with the input rows, in order.

        Raises:
            ResumeMismatchError: An input has changed since its rows were answered.
            JournalError: A row has no record.
            StorageError: The file cannot be written; the journal is kept.
        """
        joiner = RowJoiner(
            self._parser,
            selects_by_name=self._plan.config.columns is not None,
            written_format=output_format(path),
            shape=self._shape,
        )
        openai = openai_job(self._plan) if self._shape == "openai" else None
        metadata = _metadata(self._plan)
        with open_writer(path, self._columns, openai=openai, metadata=metadata) as writer:
            yield AnsweredRows(
                self._index, joiner, writer, columns=self._columns, shape=self._shape
            )
            self._before_appearing()


def write_output(ordered: OrderedOutput, plan: OutputPlan, *, on_fraction: OnFraction) -> None:
    """Write the output of a job whose rows are all in the journal.

    Args:
        ordered: Its rows.
        plan: The job.
        on_fraction: Called now and then with the share that is written, 0 to 1; may raise.

    Raises:
        NanobatchError: See `OrderedOutput.open`.
    """
    output = Path(plan.config.output)
    remove_stale_temporaries(output)
    require_free_bytes(output, journal_bytes(plan.config.journal_dir))
    num_bytes = total_bytes(plan.sources) or 1
    rows = FileRows(ordered.rows())
    with ordered.open(output) as add:
        while portion := rows.take(PORTION_ROWS, wait=False):
            add.all(portion)
            on_fraction(min(1.0, portion[-1].offset_bytes / num_bytes))
        if rows.failure is not None:
            raise rows.failure
        on_fraction(1.0)


def openai_job(plan: OutputPlan) -> OpenAiJob:
    """Return what lines in OpenAI's shape say of a job."""
    return OpenAiJob(model_name=plan.model_name, key=job_key(plan.fingerprint))


def job_columns(plan: OutputPlan, parser: RowParser) -> OutputColumns:
    """Return the output's columns: ours, then those that pass through with their types.

    Raises:
        OutputError: `--columns` names a column that no input has.
    """
    schemas = {source.arrow_schema for source in plan.sources}
    has_extra = None in schemas or len(schemas) > 1
    return asked_columns(plan.config, _passthrough_columns(plan, parser), has_extra=has_extra)


def asked_columns(
    config: JobConfig, passthrough: pa.Schema, *, has_extra: bool = True
) -> OutputColumns:
    """Return the columns that a configuration asks for, of those that may pass through.

    Raises:
        OutputError: `--columns` names a column that no input has.
    """
    return output_columns(
        passthrough,
        selected=config.columns,
        has_extra=has_extra,
        include_truncated_tokens=config.engine.long_prompts != "error",
        include_token_ids=config.include_token_ids,
        include_logprobs=config.engine.return_logprobs,
    )


def _passthrough_columns(plan: OutputPlan, parser: RowParser) -> pa.Schema:
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


def _observed_columns(plan: OutputPlan, parser: RowParser) -> pa.Schema:
    """Type the pass-through columns by the job's first rows."""
    typer = ColumnTyper()
    selected = plan.config.columns
    rows = FileRows(islice(iter_rows(plan.sources), MAX_TYPED_ROWS))
    while portion := rows.take(PORTION_ROWS, wait=False):
        decode_together(portion)
        kept = parser.ids_and_passthrough if selected is None else parser.ids_and_columns
        for _, columns in kept(portion):
            typer.observe(columns)
    schema = typer.schema()
    for name in selected or ():
        if name not in schema.names:
            logger.warning("--columns names %r, which is in none of the first rows", name)
    return schema


def _metadata(plan: OutputPlan) -> dict[str, str]:
    metadata = {
        "nanobatch.version": __version__,
        "nanobatch.model": plan.model_name,
        "nanobatch.job": json.dumps(plan.fingerprint),
    }
    if plan.is_partial:
        metadata["nanobatch.partial"] = "true"
    elif plan.config.shard is not None:
        metadata["nanobatch.shard"] = json.dumps(plan.shard_rows())
    return metadata
