"""The loop of one run: read, skip what is finished, feed the engine, record, put in order.

    inputs ─ Feeder ▶ requests ─ EngineCore ▶ outputs ─ Recorder ▶ journal ─ finalize ▶ output

The model is loaded when the first row needs it: a job whose rows are all finished or all
refused loads none.
"""

import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from nanobatch.engine.core import EngineCore
from nanobatch.engine.factory import LoadRunner, build_engine
from nanobatch.errors import Stopped
from nanobatch.io.columns import output_columns
from nanobatch.io.duplicate_ids import DuplicateIds
from nanobatch.io.input_source import total_bytes
from nanobatch.io.journal import open_journal
from nanobatch.io.journal_counts import JournalCounts
from nanobatch.io.journal_index import JournalIndex
from nanobatch.io.journal_writer import JournalWriter
from nanobatch.io.rows import RowParser
from nanobatch.io.writer_jsonl import JsonlStreamWriter
from nanobatch.job.feeder import PORTION_ROWS, Feeder
from nanobatch.job.finalize import RowJoiner, write_output
from nanobatch.job.lock import output_lock
from nanobatch.job.manifest import find_complete_job, open_manifest
from nanobatch.job.monitor import Monitor
from nanobatch.job.plan import JobPlan, make_plan
from nanobatch.job.recorder import JournalSink, Recorder, StdoutSink
from nanobatch.job.row_stream import open_row_stream
from nanobatch.job.sampling import describe_sampling
from nanobatch.job.stats import JobStats, Phase
from nanobatch.job.stop_signal import StopSignal, exit_code_of
from nanobatch.job.summary import remove_journal, write_summary
from nanobatch.job_config import JobConfig

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
        stopped_by: The signal that ended the run early, or None.
        num_rows: Rows in the output.
    """

    exit_code: int
    stats: JobStats | None
    stopped_by: signal.Signals | None = None
    num_rows: int | None = None


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
    # Arrow's default pool keeps freed memory: 30 MB more than malloc for writing Parquet.
    pa.set_memory_pool(pa.system_memory_pool())
    plan = make_plan(config)
    run = JobRun(plan, on_stats=on_stats, stop=stop or StopSignal(), load_runner=load_runner)
    if config.writes_to_stdout:
        return run.run()
    complete = find_complete_job(config, plan.fingerprint, plan.sources)
    if complete is not None:
        remove_journal(config)
        return JobResult(exit_code=complete.exit_code, stats=None, num_rows=complete.num_rows)
    with output_lock(config.journal_dir):
        return run.run()


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
        self._load_runner = load_runner
        self._engine: EngineCore | None = None
        self._num_unknown_parameters = 0
        self._parser = RowParser(
            plan.config.rows, plan.sampling, vocab_size=plan.model_config.vocab_size
        )
        self._monitor = Monitor(
            job_name=plan.config.output,
            model_name=plan.model.name,
            input_bytes=total_bytes(plan.sources),
        )

    def run(self) -> JobResult:
        """Run to the end or until a signal; see `run_job`."""
        self._log_start()
        with self._stop.deferred():
            try:
                if self._plan.config.writes_to_stdout:
                    is_complete = self._run_to_stdout()
                else:
                    is_complete = self._run_to_file()
            except Stopped:
                is_complete = False
        self._enter(Phase.FINISHED if is_complete else Phase.STOPPED)
        stats = self._monitor.snapshot()
        if not is_complete:
            received = self._stop.received
            assert received is not None, "only a signal ends a run early"
            return JobResult(exit_code=exit_code_of(received), stats=stats, stopped_by=received)
        exit_code = self._exit_code(stats)
        if not self._plan.config.writes_to_stdout:
            write_summary(self._plan, stats, exit_code=exit_code)
            remove_journal(self._plan.config)
        return JobResult(exit_code=exit_code, stats=stats, num_rows=stats.num_rows_done)

    def _run_to_stdout(self) -> bool:
        config = self._plan.config
        columns = output_columns(
            pa.schema([]),
            selected=config.columns,
            include_token_ids=config.include_token_ids,
            include_logprobs=config.engine.return_logprobs,
        )
        with JsonlStreamWriter(sys.stdout.buffer, columns) as writer:
            joiner = RowJoiner(
                self._parser, selects_by_name=config.columns is not None, copies_arrow=False
            )
            return self._generate(Recorder(StdoutSink(writer, joiner), self._monitor), None)

    def _run_to_file(self) -> bool:
        config = self._plan.config
        with open_journal(config.journal_dir) as index:
            open_manifest(config, self._plan.fingerprint, has_records=len(index) > 0)
            self._count_resumed(index.counts)
            with JournalWriter(index) as writer:
                recorder = Recorder(JournalSink(writer), self._monitor)
                if not self._generate(recorder, index):
                    return False
            self._enter(Phase.FINALIZING)
            write_output(self._plan, index, self._parser, on_fraction=self._on_finalize_fraction)
        return True

    def _generate(self, recorder: Recorder, index: JournalIndex | None) -> bool:
        """Finish every row that is not in the index; return False if a signal came first."""
        config = self._plan.config
        feeder = Feeder(
            rows=open_row_stream(self._plan.sources),
            parser=self._parser,
            index=index,
            duplicate_ids=None if config.rows.allow_duplicate_ids else DuplicateIds(),
            recorder=recorder,
            monitor=self._monitor,
        )
        try:
            while self._stop.received is None:
                self._feed(feeder, recorder)
                if self._engine is not None and self._engine.has_unfinished:
                    for outputs in self._engine.step():
                        recorder.record(outputs)
                    self._monitor.observe(self._engine.stats())
                elif feeder.is_exhausted:
                    return True
                self._on_stats(self._monitor.snapshot())
            return False
        finally:
            if self._engine is not None:
                self._engine.close()
                self._engine = None  # its memory is wanted for writing the output

    def _feed(self, feeder: Feeder, recorder: Recorder) -> None:
        """Fill the look-ahead window with what is there; wait for a row only without work."""
        while not feeder.is_exhausted and self._stop.received is None:
            room = self._window_room()
            if room <= 0:
                return
            is_idle = self._engine is None or not self._engine.has_unfinished
            requests, has_rows = feeder.next_requests(min(room, PORTION_ROWS), wait=is_idle)
            self._warn_of_unknown_parameters()
            if requests:
                for outputs in self._loaded_engine().add_requests(requests):
                    recorder.record(outputs)
            if not has_rows or self._engine is None:
                return

    def _window_room(self) -> int:
        """Return how many more rows may wait for the engine."""
        config = self._plan.config
        if self._engine is None:
            return config.window_rows
        stats = self._engine.stats()
        num_rows = config.window_rows - stats.num_waiting
        num_tokens = config.window_tokens - stats.num_unfinished_tokens
        num_unfinished = self._engine.num_unfinished
        if num_unfinished == 0:
            return num_rows
        # The next rows are taken to be as long as those that are here.
        tokens_per_row = max(1, stats.num_unfinished_tokens // num_unfinished)
        return min(num_rows, num_tokens // tokens_per_row)

    def _loaded_engine(self) -> EngineCore:
        if self._engine is None:
            self._enter(Phase.LOADING)
            self._engine = build_engine(
                self._plan.config.engine,
                source=self._plan.model,
                load_runner=self._load_runner,
                on_progress=self._on_load_fraction,
            )
            self._enter(Phase.RUNNING)
        return self._engine

    def _count_resumed(self, counts: JournalCounts) -> None:
        self._monitor.count_resumed(counts)
        if counts.num_rows:
            logger.info("resuming: %s rows are finished", f"{counts.num_rows:,}")

    def _on_load_fraction(self, fraction: float) -> None:
        self._monitor.load_fraction = fraction
        self._on_stats(self._monitor.snapshot())

    def _on_finalize_fraction(self, fraction: float) -> None:
        if self._stop.received is not None:
            raise Stopped("stopped while writing the output")
        self._monitor.finalize_fraction = fraction
        self._on_stats(self._monitor.snapshot())

    def _enter(self, phase: Phase) -> None:
        self._monitor.enter(phase)
        self._on_stats(self._monitor.snapshot())

    def _exit_code(self, stats: JobStats) -> int:
        allowed = self._plan.config.max_errors
        is_ok = allowed is None or stats.num_rows_error <= allowed
        return EXIT_OK if is_ok else EXIT_ROW_ERRORS

    def _warn_of_unknown_parameters(self) -> None:
        """Say once of each parameter that nobody knows where it was first seen."""
        places = list(self._parser.unknown_parameters.items())
        for name, place in places[self._num_unknown_parameters :]:
            logger.warning("%s: unknown parameter %s is ignored", place, name)
        self._num_unknown_parameters = len(places)

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
