"""What earlier runs on the same output left, and what becomes of it (promises 14 and 15).

    nothing                   a new job
    a journal of this job     continued
    a journal of another job  refused; --restart discards it
    an output of another job  refused before (`job.complete_output`); --overwrite replaces it
    a complete output         --retry-errors takes its good rows back into a journal

Holds the lock on the output while it is used.
"""

import logging
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

import pyarrow as pa

from nanobatch.errors import OutputError, ResumeMismatchError
from nanobatch.io.journal import open_journal
from nanobatch.io.journal_index import JournalIndex
from nanobatch.io.journal_record import JournalRecord
from nanobatch.io.journal_segment import segment_numbers
from nanobatch.io.journal_writer import JournalWriter
from nanobatch.io.output_reader import iter_output_rows
from nanobatch.io.readers import iter_rows
from nanobatch.job.complete_output import CompleteJob, other_stdin_error
from nanobatch.job.finalize import asked_columns
from nanobatch.job.fingerprint import stdin_digest
from nanobatch.job.job_record import to_json
from nanobatch.job.journal_folder import discard_journal
from nanobatch.job.lock import LOCK_NAME
from nanobatch.job.manifest import (
    Manifest,
    manifest_path,
    read_manifest,
    shard_json,
    write_manifest,
)
from nanobatch.job.output_place import SPOOL_NAME
from nanobatch.job.part_files import forget_parts
from nanobatch.job.plan import JobPlan
from nanobatch.job.same_job import RETRY_MAY_CHANGE, require_same_job

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRuns:
    """Rows that need not run again.

    Attributes:
        index: The journal; its owner closes it.
        retry_before_segment: Error rows in segments with smaller numbers are run again; None
            runs none again.
    """

    index: JournalIndex
    retry_before_segment: int | None = None

    def is_finished(self, row_index: int) -> bool:
        """Return whether a row has an answer that stays."""
        if not self.index.has(row_index):
            return False
        return not self.is_retried(row_index)

    def is_retried(self, row_index: int) -> bool:
        """Return whether a row has an error that is to be run again."""
        return (
            self.retry_before_segment is not None
            and self.index.segment(row_index) < self.retry_before_segment
            and self.index.is_error(row_index)
        )


def open_earlier_runs(plan: JobPlan, complete: CompleteJob | None) -> EarlierRuns:
    """Continue the job's journal, or begin one, as the flags say.

    Args:
        plan: The job.
        complete: Its output, where that is complete and its errors are to be run again.

    Raises:
        ResumeMismatchError: The journal belongs to another job.
        OutputError: The journal has rows and no manifest.
        JournalError: The journal is damaged in its middle.
        StorageError: The journal's folder cannot be written.
    """
    config = plan.config
    folder = config.journal_dir
    if config.start_over.restart:
        # The manifest stays until the new one replaces it: it says whose first parts a folder has.
        discard_journal(folder, keep=(LOCK_NAME, manifest_path(folder).name))
        return _begin(plan, open_journal(folder))
    stored = read_manifest(folder)
    if complete is not None:
        _require_its_stdin(plan, complete)
        if stored is None or not _is_retry_begun(stored, complete):
            return _take_back_good_rows(plan, complete, stored)
    index = open_journal(folder, repair=config.start_over.repair_journal)
    if not len(index):
        # While no row is finished nothing can be mixed, so a run that failed at its start does
        # not hold up the corrected one.
        return _begin(plan, index, retry_before_segment=None if complete is None else 1)
    if stored is None:
        raise OutputError(
            f"{folder} has finished rows and no manifest", hint="discard them with --restart"
        )
    manifest = _continued(plan, stored)
    is_changed = manifest.fingerprint != stored.fingerprint  # in what a retry may change
    if config.start_over.retry_errors and (is_changed or manifest.retry_before_segment is None):
        forget_parts(folder)
        manifest = replace(manifest, retry_before_segment=max(segment_numbers(folder)) + 1)
    if manifest != stored:
        write_manifest(folder, manifest)
    return EarlierRuns(index=index, retry_before_segment=manifest.retry_before_segment)


def _begin(
    plan: JobPlan, index: JournalIndex, *, retry_before_segment: int | None = None
) -> EarlierRuns:
    """Say whose journal it is from now on."""
    manifest = replace(_new_manifest(plan), retry_before_segment=retry_before_segment)
    write_manifest(plan.config.journal_dir, manifest)
    return EarlierRuns(index=index, retry_before_segment=retry_before_segment)


def _new_manifest(plan: JobPlan) -> Manifest:
    return Manifest(
        fingerprint=plan.fingerprint,
        shard=shard_json(plan.config),
        job=to_json(plan.config, inputs=[source.path for source in plan.sources]),
        overwrites=plan.config.start_over.overwrite,
    )


def _continued(plan: JobPlan, stored: Manifest) -> Manifest:
    """Check that a journal belongs to the job and return its manifest from now on."""
    config = plan.config
    hint = "choose another output, or discard what is finished with --restart"
    if config.start_over.overwrite and not stored.overwrites:
        # Only what this same command began is continued by it.
        raise ResumeMismatchError(
            f"{config.journal_dir} was begun without --overwrite",
            hint="leave out --overwrite to continue it, or discard it with --restart",
        )
    new = _new_manifest(plan)
    require_same_job(
        {**stored.fingerprint, "shard": stored.shard},
        {**new.fingerprint, "shard": new.shard},
        where=str(config.journal_dir),
        hint=hint,
        ignored=RETRY_MAY_CHANGE if config.start_over.retry_errors else (),
    )
    return replace(
        new,
        retry_before_segment=stored.retry_before_segment,
        journal_id=stored.journal_id,
    )


def _is_retry_begun(stored: Manifest, complete: CompleteJob) -> bool:
    """Whether a journal is of a retry of a complete job's errors that has yet to end."""
    return stored.retry_before_segment is not None and stored.journal_id != complete.journal_id


def _require_its_stdin(plan: JobPlan, complete: CompleteJob) -> None:
    """Check that standard input, where it is an input, is the one that an output answers."""
    if stdin_digest(plan.sources) != complete.stdin:
        # Kept, it would be taken for the beginning of the right one.
        (plan.config.journal_dir / SPOOL_NAME).unlink(missing_ok=True)
        raise other_stdin_error(plan.config)


def _take_back_good_rows(
    plan: JobPlan, complete: CompleteJob, stored: Manifest | None
) -> EarlierRuns:
    """Return a journal with the good rows of a complete output; the others run again.

    A journal that was kept (`--keep-journal`) has them already.
    """
    folder = plan.config.journal_dir
    index = open_journal(folder, repair=plan.config.start_over.repair_journal)
    is_kept = stored is not None and stored.journal_id == complete.journal_id
    if len(index) and stored is not None and not is_kept:
        raise ResumeMismatchError(
            f"{folder} is the journal of an unfinished run that is to replace {plan.config.output}",
            hint="let that run end, or remove its journal",
        )
    if not is_kept or len(index) < complete.num_rows:
        discard_journal(folder, keep=(LOCK_NAME, SPOOL_NAME))
        index = open_journal(folder)
        logger.info("taking the good rows of %s back", plan.config.output)
        _record_good_rows(plan, index)
    forget_parts(folder)
    next_segment = max(segment_numbers(folder), default=0) + 1
    return _begin(plan, index, retry_before_segment=next_segment)


def _record_good_rows(plan: JobPlan, index: JournalIndex) -> None:
    rows = iter_rows(plan.sources, start=plan.rows.first, stop=plan.rows.stop)
    columns = asked_columns(plan.config, pa.schema([]))
    finished = chain.from_iterable(iter_output_rows(path, columns) for path in plan.output_files())
    with JournalWriter(index) as writer:
        for row, found in zip_longest(rows, finished):
            if row is None or found is None or found[0] != row.row_index:
                raise OutputError(
                    f"{plan.config.output} has other rows than the inputs",
                    hint="it was changed after it was written; --overwrite makes it anew",
                )
            _, outputs = found
            if all(output.error is None for output in outputs):
                writer.append(JournalRecord(row.row_index, row.payload_hash, outputs))
