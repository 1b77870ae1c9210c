"""The loop that answers rows: read, skip what is finished, feed the engine, record.

    inputs ─ Feeder ▶ requests ─ EngineCore ▶ outputs ─ Recorder ▶ journal or standard output

The model is loaded when the first row needs it: a job whose rows are all finished or all
refused loads none.
"""

import logging
from collections.abc import Callable

from nanobatch.engine.core import EngineCore
from nanobatch.engine.factory import LoadRunner, build_engine
from nanobatch.errors import Stopped
from nanobatch.io.duplicate_ids import DuplicateIds
from nanobatch.io.readers import iter_rows
from nanobatch.io.rows import RowParser
from nanobatch.job.earlier_runs import EarlierRuns
from nanobatch.job.error_limits import ErrorLimits
from nanobatch.job.feeder import PORTION_ROWS, Feeder, remember_ids
from nanobatch.job.monitor import Monitor
from nanobatch.job.part_files import PartFiles
from nanobatch.job.plan import JobPlan
from nanobatch.job.recorder import Recorder
from nanobatch.job.row_stream import open_row_stream
from nanobatch.job.stats import Phase
from nanobatch.job.stop_signal import StopSignal

logger = logging.getLogger(__name__)

PART_ROWS_PER_STEP = 128
"""Rows written into part files between two steps: more than a step can finish on average, few
enough (a millisecond or two) for the engine not to notice."""
FIRST_ROWS_AHEAD = 1024
"""Rows that wait before the first step, half of what a large GPU runs at once or more. With fewer
there is little to see of what rows share; tokenizing more would keep the first ones waiting."""
MORE_ROWS_AHEAD = 64
"""Rows that wait in addition from step to step, until the window is full: so few that they are
tokenized while the device computes a step."""


class Generation:
    """Answers the rows of one run.

    Args:
        plan: What to do.
        parser: Turns rows into requests.
        monitor: Counts.
        stop: Asks to stop between steps.
        load_runner: Loads the model runner; None loads the torch one.
        on_change: Called when the counts have changed, at least once a step.
    """

    def __init__(
        self,
        plan: JobPlan,
        *,
        parser: RowParser,
        monitor: Monitor,
        stop: StopSignal,
        load_runner: LoadRunner | None,
        on_change: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._parser = parser
        self._monitor = monitor
        self._stop = stop
        self._load_runner = load_runner
        self._on_change = on_change
        self._engine: EngineCore | None = None
        self._num_unknown_parameters = 0
        self._most_rows_ahead = FIRST_ROWS_AHEAD

    def run(
        self, recorder: Recorder, *, earlier: EarlierRuns | None, parts: PartFiles | None = None
    ) -> None:
        """Record an output for every row that has none.

        Args:
            recorder: Takes the outputs.
            earlier: What earlier runs finished; None where nothing is resumed.
            parts: Part files to write into meanwhile.

        Raises:
            Stopped: A signal or a time limit came first; what is finished is recorded.
            TooManyErrorsError: So many rows are errors that the run stopped.
            NanobatchError: An input, the engine or the disk failed; what is finished is recorded.
        """
        limits = ErrorLimits(
            self._plan.config,
            self._monitor,
            recorder=recorder,
            is_retry=earlier is not None and earlier.retry_before_segment is not None,
        )
        feeder = self._feeder(recorder, earlier)
        # A pipe's spool is read by the thread that fills it, and by nobody else meanwhile.
        if any(source.spool is not None for source in self._plan.sources):
            parts = None
        try:
            while self._stop.received is None:
                self._feed(feeder, recorder, limits)
                if self._engine is not None and self._engine.has_unfinished:
                    self._engine.expect_more(is_more=not feeder.is_exhausted)
                    recorder.record_all(self._engine.step())
                    self._monitor.observe(self._engine.stats())
                elif feeder.failure is not None:
                    raise feeder.failure
                elif feeder.is_exhausted:
                    limits.require_good_first_row()
                    return
                if parts is not None:
                    parts.advance(PART_ROWS_PER_STEP)
                self._on_change()
                limits.check()
            raise Stopped("stopped while rows were left")
        finally:
            if self._engine is not None:
                self._engine.close()
                self._engine = None  # its memory is wanted for writing the output

    def _feeder(self, recorder: Recorder, earlier: EarlierRuns | None) -> Feeder:
        config, rows = self._plan.config, self._plan.rows
        duplicate_ids = None if config.rows.allow_duplicate_ids else DuplicateIds()
        if rows.first > 0 and duplicate_ids is not None:
            earlier_rows = iter_rows(self._plan.sources, stop=rows.first)
            remember_ids(earlier_rows, self._parser, duplicate_ids)
        return Feeder(
            rows=open_row_stream(self._plan.sources, start=rows.first, stop=rows.stop),
            parser=self._parser,
            earlier=earlier,
            duplicate_ids=duplicate_ids,
            recorder=recorder,
            monitor=self._monitor,
        )

    def _feed(self, feeder: Feeder, recorder: Recorder, limits: ErrorLimits) -> None:
        """Put into the look-ahead window what is there; wait for a row only without work.

        The window begins small and grows a little from step to step: it shall show the scheduler
        as much of the file as it may hold, but the first rows wait for no more than a part.
        """
        if self._engine is not None:
            self._most_rows_ahead += MORE_ROWS_AHEAD
        while not feeder.is_exhausted and self._stop.received is None:
            room = self._window_room()
            if room <= 0:
                return
            is_idle = self._engine is None or not self._engine.has_unfinished
            requests, has_rows = feeder.next_requests(min(room, PORTION_ROWS), wait=is_idle)
            self._warn_of_unknown_parameters()
            if requests:
                recorder.record_all(self._loaded_engine().add_requests(requests))
            if not has_rows or self._engine is None:
                return
            if not feeder.is_exhausted:  # rows that are refused fill no window
                self._on_change()
                limits.check()

    def _window_room(self) -> int:
        """Return how many more rows may wait for the engine."""
        config = self._plan.config
        most_rows = min(config.window_rows, self._most_rows_ahead)
        if self._engine is None:
            return most_rows
        stats = self._engine.stats()
        num_unfinished = self._engine.num_unfinished
        # Rows that wait, and the next ones, are taken to be as long as all that are here. Those
        # that run do not count: a window that they filled would let the engine run half empty.
        tokens_per_row = max(1, stats.num_unfinished_tokens // max(1, num_unfinished))
        num_rows = min(most_rows, config.window_tokens // tokens_per_row)
        return max(num_rows, 1) - stats.num_waiting

    def _loaded_engine(self) -> EngineCore:
        if self._engine is None:
            self._monitor.enter(Phase.LOADING)
            self._on_change()
            self._engine = build_engine(
                self._plan.config.engine,
                source=self._plan.model,
                load_runner=self._load_runner,
                on_progress=self._on_load_fraction,
            )
            self._monitor.enter(Phase.RUNNING)
            self._on_change()
        return self._engine

    def _on_load_fraction(self, fraction: float) -> None:
        if self._stop.received is not None:
            raise Stopped("stopped while the model was loaded")
        self._monitor.load_fraction = fraction
        self._on_change()

    def _warn_of_unknown_parameters(self) -> None:
        """Say once of each parameter that nobody knows where it was first seen."""
        places = list(self._parser.unknown_parameters.items())
        for name, place in places[self._num_unknown_parameters :]:
            logger.warning("%s: unknown parameter %s is ignored", place, name)
        self._num_unknown_parameters = len(places)
