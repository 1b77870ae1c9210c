"""`nanobatch export --partial`: what is finished of a job, as a file, whatever the job does.

Reads what the job left on disk: the manifest says what it is, the journal has the answers, the
inputs have the columns that pass through. Takes no lock, changes nothing of the job and needs no
model. A row that is not finished is left out; `row_index` tells which.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

from nanobatch.errors import JournalError, OutputError, ResumeMismatchError
from nanobatch.io.durable import require_free_bytes
from nanobatch.io.input_row import InputRow
from nanobatch.io.input_source import STDIN, InputSource
from nanobatch.io.journal import open_journal
from nanobatch.io.journal_index import JournalIndex
from nanobatch.io.journal_segment import journal_bytes
from nanobatch.io.rows import RowParser
from nanobatch.io.sources import resolve_inputs
from nanobatch.io.stdin_spool import StdinSpool
from nanobatch.io.writers import OutputFormat, output_format
from nanobatch.job.finalize import OrderedOutput
from nanobatch.job.job_record import from_json
from nanobatch.job.job_rows import find_job_rows
from nanobatch.job.manifest import Manifest, manifest_path, read_json_object, read_manifest
from nanobatch.job.observe import JobState
from nanobatch.job.observe_shards import ObservedShards, observe_output
from nanobatch.job.output_place import SPOOL_NAME, check_output
from nanobatch.job.output_plan import OutputPlan
from nanobatch.job.status import read_status
from nanobatch.job_config import JobConfig
from nanobatch.models.source import DEMO_NAME
from nanobatch.request import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export wrote.

    Attributes:
        num_rows: Rows of the job in the file.
        num_job_rows: Rows of the job, None while the job has not read them all.
    """

    num_rows: int
    num_job_rows: int | None


def export_partial(output: str, file: str, *, overwrite: bool = False) -> Exported:
    """Write the rows of a job that are finished, in input order.

    Args:
        output: The output of the job.
        file: Where the rows go; its suffix says in which format.
        overwrite: Replace the file if it is there.

    Raises:
        OutputError: There is no unfinished job with this output, or the file is refused.
        InputError: An input of the job cannot be opened from here.
        ResumeMismatchError: An input has changed since its rows were answered.
        JournalError: The journal is damaged in its middle.
        StorageError: The file cannot be written; none appears.
    """
    job = JobConfig(inputs=(), output=output)
    manifest = read_manifest(job.journal_dir)
    if manifest is None:
        raise _nothing_to_export(job)
    config = from_json(manifest.job)
    _check_file(job, config, file, overwrite=overwrite)
    try:
        with open_journal(job.journal_dir, read_only=True) as index:
            require_free_bytes(Path(file), journal_bytes(job.journal_dir))
            plan = _output_plan(job, _as_written(config, file), manifest)
            num_rows = _write(
                plan,
                index,
                Path(file),
                before_appearing=lambda: _require_unfinished(job, config, manifest),
            )
    except (OSError, JournalError) as error:
        _require_unfinished(job, config, manifest)
        if manifest_path(job.journal_dir).exists():
            raise
        raise _nothing_to_export(job) from error  # it finished while we read
    return Exported(num_rows=num_rows, num_job_rows=_num_job_rows(job, plan))


def _check_file(job: JobConfig, config: JobConfig, file: str, *, overwrite: bool) -> None:
    """Refuse a file that cannot be written or would destroy something."""
    path, output = Path(file), Path(job.output)
    output_format(path)
    if file.endswith("/"):
        raise OutputError(f"{file} is a folder", hint="name a file: an export is in one piece")
    check_output(_as_written(config, file))
    places = [path.resolve(), *path.resolve().parents]
    if output.resolve() in places:
        raise OutputError(
            f"{file} is the job's own output, which its run will write", hint="name another file"
        )
    if job.journal_dir.resolve() in places:
        raise OutputError(
            f"{file} lies in the job's journal, which goes when it finishes",
            hint="name a file elsewhere",
        )
    if _as_written(config, file).journal_dir.exists():
        raise OutputError(f"{file} is the output of a job", hint="name another file")
    if path.exists() and not overwrite:
        raise OutputError(f"{file} exists", hint="name another file, or replace it: --overwrite")


def _as_written(config: JobConfig, file: str) -> JobConfig:
    """Return the configuration of a job that would write this file."""
    is_parquet = output_format(Path(file)) is OutputFormat.PARQUET
    return replace(config, output=file, output_shape="flat" if is_parquet else config.output_shape)


def _output_plan(job: JobConfig, config: JobConfig, manifest: Manifest) -> OutputPlan:
    sources = _open_inputs(config, job.journal_dir / SPOOL_NAME)
    return OutputPlan(
        config=config,
        sources=sources,
        rows=find_job_rows(config, sources),
        model_name=config.engine.model or DEMO_NAME,
        fingerprint=dict(manifest.fingerprint),
        is_partial=True,
    )


def _open_inputs(config: JobConfig, spool: Path) -> tuple[InputSource, ...]:
    """Open the files of a job, and what came through its pipe so far."""
    paths = [path for path in config.inputs if path != STDIN]
    files = iter(
        resolve_inputs(paths, config.input_format, delimiter=config.delimiter) if paths else ()
    )
    return tuple(_spooled(spool) if path == STDIN else next(files) for path in config.inputs)


def _spooled(spool: Path) -> InputSource:
    try:
        reopened = StdinSpool.reopened(spool)
    except FileNotFoundError:  # nothing came yet
        reopened = StdinSpool.reopened(Path(os.devnull))
    return InputSource(path=STDIN, format="jsonl", size_bytes=None, spool=reopened)


def _require_unfinished(job: JobConfig, config: JobConfig, manifest: Manifest) -> None:
    """Check that no run was removing the journal while it was read: rows would be missing."""
    summary = read_json_object(job.summary_path) or {}
    if summary.get("journal_id") == manifest.journal_id and not config.keep_journal:
        raise _nothing_to_export(job)


def _write(
    plan: OutputPlan, index: JournalIndex, path: Path, *, before_appearing: Callable[[], None]
) -> int:
    """Write the finished rows; return how many."""
    parser = RowParser(plan.config.rows, SamplingParams())
    ordered = OrderedOutput(plan, index, parser, before_appearing=before_appearing)
    num_recorded, num_written = len(index), 0
    with ordered.open(path) as add:
        for row in _finished_rows(ordered.rows(), index):
            add(row)
            num_written += 1
            if num_written == num_recorded:
                break
        if num_written < num_recorded and all(source.spool is None for source in plan.sources):
            raise ResumeMismatchError(
                f"{num_recorded - num_written:,} finished rows are not in the inputs any more",
                hint="restore the inputs",
            )
    return num_written


def _finished_rows(rows: Iterator[InputRow], index: JournalIndex) -> Iterator[InputRow]:
    """Yield the rows that have a record.

    A machine that crashed may have kept records of more rows than its spool has bytes of: where
    that ends in the middle of a line, the line is left out.
    """
    for row, following in pairwise(chain(rows, [None])):
        assert row is not None, "only the last one has no row after it"
        if not index.has(row.row_index):
            continue
        is_last_of_pipe = row.source.spool is not None and (
            following is None or following.source is not row.source
        )
        if is_last_of_pipe and index.payload_hash(row.row_index) != row.payload_hash:
            continue
        yield row


def _num_job_rows(job: JobConfig, plan: OutputPlan) -> int | None:
    """Return the rows of the job where the job or its inputs say how many there are."""
    status = read_status(job.journal_dir)
    if status is not None and status.rows_total is not None:
        return status.rows_total
    if plan.rows.num_rows is not None:
        return plan.rows.num_rows
    declared = [source.num_rows for source in plan.sources if source.num_rows is not None]
    if len(declared) < len(plan.sources):
        return None
    num_rows = sum(declared)
    return num_rows if plan.rows.max_rows is None else min(num_rows, plan.rows.max_rows)


def _nothing_to_export(job: JobConfig) -> OutputError:
    """Return why there is no unfinished job with an output."""
    observed = observe_output(job.output)
    if isinstance(observed, ObservedShards):
        first = next(iter(observed.jobs.values()))
        return OutputError(
            f"{job.output} is split into {observed.num_shards} shards",
            hint=f"export each by its own name: {first.output}",
        )
    if observed.state is JobState.FINISHED:
        return OutputError(
            f"{job.output} is complete", hint="use it as it is: a complete output needs no export"
        )
    return OutputError(
        f"{job.journal_dir} has no manifest, so nothing says which job it is of",
        hint="run the job's line again",
    )
