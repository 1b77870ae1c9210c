"""One run of a job: from its plan to the output, whatever earlier runs left.

    plan ─ lock ─ earlier runs ─ Generation ▶ journal ─ finalize or part files ▶ output ─ summary

Knows the order of these and what is written when; each is a module of its own.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from nanobatch.engine.factory import LoadRunner
from nanobatch.errors import LockLostError, Stopped
from nanobatch.io.input_source import total_bytes
from nanobatch.io.journal_counts import JournalCounts
from nanobatch.io.journal_writer import JournalWriter
from nanobatch.io.output_shape import settled_shape
from nanobatch.io.rows import RowParser
from nanobatch.io.writer_jsonl import JsonlStreamWriter
from nanobatch.io.writers import OutputFormat, row_encoder
from nanobatch.job.complete_output import CompleteJob, find_complete_job
from nanobatch.job.earlier_runs import open_earlier_runs
from nanobatch.job.finalize import OrderedOutput, asked_columns, openai_job, write_output
from nanobatch.job.generation import Generation
from nanobatch.job.journal_folder import remove_finished_journal, remove_journal
from nanobatch.job.lock import OutputLock, output_lock
from nanobatch.job.monitor import Monitor
from nanobatch.job.part_files import PartFiles
from nanobatch.job.plan import JobPlan, make_plan
from nanobatch.job.process_memory import set_process_memory
from nanobatch.job.recorder import JournalSink, PrintRow, Recorder, StdoutSink
from nanobatch.job.row_joiner import RowJoiner
from nanobatch.job.sampling import describe_sampling
from nanobatch.job.stats import JobStats, Phase
from nanobatch.job.status import StatusWriter, status_path
from nanobatch.job.stop_signal import StopReason, StopSignal
from nanobatch.job.summary import write_summary
from nanobatch.job.template_hint import find_template_hint
from nanobatch.job_config import JobConfig, OutputShape

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_ROW_ERRORS = 3

OnStats = Callable[[JobStats], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a run ended.

    Attributes:
        exit_code: For the process; negative where it should die of that signal.
        stats: Last snapshot; None when there was nothing to do.
        stopped_by: What ended the run early, or None.
        num_rows: Rows in the output.
        num_rows_error: Of those, rows that are errors; None where the run was stopped.
    """

    exit_code: int
    stats: JobStats | None
    stopped_by: StopReason | None = None
    num_rows: int | None = None
    num_rows_error: int | None = None


def run_job(
    config: JobConfig,
    *,
    on_stats: OnStats = lambda _stats: None,
    stop: StopSignal | None = None,
    load_runner: LoadRunner | None = None,
) -> JobResult:
    """Generate for every row of the inputs that has no answer yet, then write the output.

    Args:
        config: The job.
        on_stats: Called with a snapshot after every step; must be cheap.
        stop: Asks the run to stop between steps.
        load_runner: Loads the model runner; None loads the torch one.

    Raises:
        NanobatchError: The run was refused or failed; its message and exit code say how.
    """
    set_process_memory()
    plan = make_plan(config)
    run = JobRun(plan, on_stats=on_stats, stop=stop or StopSignal(), load_runner=load_runner)
    if config.writes_to_stdout:
        return run.run_to_stdout()
    complete = find_complete_job(config, plan.fingerprint, plan.sources)
    if not _is_done(config, complete):
        with output_lock(config.journal_dir) as lock:
            # Until it held the lock another run may have written this output, or another there.
            complete = find_complete_job(config, plan.fingerprint, plan.sources)
            if not _is_done(config, complete):
                return run.run_to_file(lock, complete)
    assert complete is not None, "only what is there is done"
    remove_finished_journal(config)
    return JobResult(
        exit_code=complete.exit_code,
        stats=None,
        num_rows=complete.num_rows,
        num_rows_error=complete.num_rows_error,
    )


def _is_done(config: JobConfig, complete: CompleteJob | None) -> bool:
    """Whether nothing is left to do for an output that is complete."""
    if complete is None:
        return False
    return not (config.start_over.retry_errors and complete.num_rows_error)


class JobRun:
    """One run of a planned job.

    Args:
        plan: What to do.
        on_stats: Called with a snapshot after every step.
        stop: Asks the run to stop between steps.
        load_runner: Loads the model runner; None loads the torch one.
    """

    def __init__(
        self,
        plan: JobPlan,
        *,
        on_stats: OnStats,
        stop: StopSignal,
        load_runner: LoadRunner | None = None,
    ) -> None:
        self._plan = plan
        self._on_stats = on_stats
        self._stop = stop
        self._status: StatusWriter | None = None
        self._parser = RowParser(
            plan.config.rows, plan.sampling, vocab_size=plan.model_config.vocab_size
        )
        self._monitor = Monitor(
            job_name=plan.config.output,
            model_name=plan.model.name,
            input_bytes=total_bytes(plan.sources),
            max_rows=plan.rows.max_rows,
        )
        self._generation = Generation(
            plan,
            parser=self._parser,
            monitor=self._monitor,
            stop=stop,
            load_runner=load_runner,
            on_change=self._report,
        )

    def run_to_stdout(self) -> JobResult:
        """Print rows as they finish; see `run_job`."""
        config = self._plan.config
        columns = asked_columns(config, pa.schema([]))

        def open_printer(shape: OutputShape) -> PrintRow:
            openai = openai_job(self._plan) if shape == "openai" else None
            writer = JsonlStreamWriter(sys.stdout.buffer, row_encoder(columns, openai))
            selects_by_name = config.columns is not None
            joiner = RowJoiner(self._parser, selects_by_name=selects_by_name, shape=shape)
            return lambda row, outputs: writer.write(joiner.join(row, outputs))

        settled = settled_shape(config.output_shape, OutputFormat.JSONL)
        sink = StdoutSink(self._parser, settled, open_printer=open_printer)
        recorder = Recorder(sink, self._monitor)
        result = self._ending(lambda: self._generation.run(recorder, earlier=None))
        sink.close()
        return result

    def run_to_file(self, lock: OutputLock, complete: CompleteJob | None) -> JobResult:
        """Record rows as they finish, then write the output in order; see `run_job`.

        Args:
            lock: The lock on the output, held.
            complete: The output, where that is complete and its errors are to be run again.
        """
        result = self._ending(lambda: self._answer_all(lock, complete))
        if result.stopped_by is None and not self._plan.config.keep_journal:
            remove_journal(lock)
        return result

    def _answer_all(self, lock: OutputLock, complete: CompleteJob | None) -> None:
        config = self._plan.config
        earlier = open_earlier_runs(self._plan, complete)
        # Not before: what is refused must leave the status of the job that is there.
        self._status = StatusWriter(status_path(config.journal_dir), shard=config.shard)
        ordered = OrderedOutput(
            self._plan, earlier.index, self._parser, before_appearing=lock.require_held
        )
        with earlier.index, ExitStack() as stack:
            self._count_resumed(earlier.index.counts)
            parts = None
            if config.writes_to_folder:
                files = PartFiles(ordered, self._plan, is_final=earlier.is_finished)
                parts = stack.enter_context(files)
            with (
                JournalWriter(earlier.index, before_write=lock.require_held) as writer,
                self._stop.before_end(writer.flush),
            ):
                recorder = Recorder(JournalSink(writer), self._monitor)
                self._generation.run(recorder, earlier=earlier, parts=parts)
            self._enter(Phase.FINALIZING)
            if parts is not None:
                parts.finish(on_fraction=self._on_finalize_fraction)
            else:
                write_output(ordered, self._plan, on_fraction=self._on_finalize_fraction)
        lock.require_held()
        self._monitor.enter(Phase.FINISHED)
        stats = self._monitor.snapshot()
        write_summary(self._plan, stats, exit_code=self._exit_code(stats))

    def _ending(self, work: Callable[[], None]) -> JobResult:
        """Do the work of a run, or stop in good order when asked to; return how it ended."""
        self._log_start()
        with self._stop.deferred():
            try:
                work()
            except Stopped:
                reason = self._stop.reason
                assert reason is not None, "nothing else ends a run early"
                stats = self._end(Phase.STOPPED, reason=reason.text)
                return JobResult(exit_code=reason.exit_code, stats=stats, stopped_by=reason)
            except LockLostError:
                self._status = None  # the file is the winner's now
                raise
            except BaseException as error:
                if self._status is not None:
                    self._end(Phase.STOPPED, reason=str(error) or type(error).__name__)
                raise
        stats = self._end(Phase.FINISHED)
        return JobResult(
            exit_code=self._exit_code(stats),
            stats=stats,
            num_rows=stats.num_rows_done,
            num_rows_error=stats.num_rows_error,
        )

    def _end(self, phase: Phase, *, reason: str | None = None) -> JobStats:
        """Enter the last phase; return the last snapshot."""
        self._enter(phase)
        stats = self._monitor.snapshot()
        if self._status is not None:
            self._status.close(stats, reason)
        return stats

    def _count_resumed(self, counts: JournalCounts) -> None:
        self._monitor.count_resumed(counts)
        if counts.num_rows:
            logger.info("resuming: %s rows are finished", f"{counts.num_rows:,}")

    def _on_finalize_fraction(self, fraction: float) -> None:
        if self._stop.received is not None:
            raise Stopped("stopped while writing the output")
        self._monitor.finalize_fraction = fraction
        self._report()

    def _enter(self, phase: Phase) -> None:
        self._monitor.enter(phase)
        self._report()

    def _report(self) -> None:
        stats = self._monitor.snapshot()
        if self._status is not None:
            self._status.update(stats)
        self._on_stats(stats)

    def _exit_code(self, stats: JobStats) -> int:
        allowed = self._plan.config.max_errors
        is_ok = allowed is None or stats.num_rows_error <= allowed
        return EXIT_OK if is_ok else EXIT_ROW_ERRORS

    def _log_start(self) -> None:
        plan = self._plan
        if plan.model.is_demo:
            logger.warning(
                "NO --model GIVEN: the embedded demo model %s answers. "
                "It is tiny; name a real one with --model.",
                plan.model.name,
            )
        logger.info(
            "sampling: %s", describe_sampling(plan.sampling, run_seed=plan.config.engine.seed)
        )
        hint = find_template_hint(plan)
        if hint is not None:
            logger.info("hint: %s", hint.text)
