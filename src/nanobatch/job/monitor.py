"""Counts what happens in a run and turns it into `JobStats` snapshots.

Mutable and owned by the job's loop; what it hands out is immutable. Rates are over the last
few seconds; ETA goes by the share of input bytes whose rows are done.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nanobatch.engine.engine_stats import EngineStats
from nanobatch.io.journal_counts import JournalCounts
from nanobatch.job.gpu_usage import GpuUsage, read_gpu_usage
from nanobatch.job.stats import JobStats, Phase
from nanobatch.request import FinishReason, RequestOutput, RequestOutputs, RowError

SAMPLE_INTERVAL_S = 0.5
NUM_SAMPLES_NOW = 8
NUM_HISTORY = 60


@dataclass(frozen=True, slots=True)
class _Sample:
    time_s: float
    num_prefill_tokens: int
    num_output_tokens: int


class Monitor:
    """The numbers of one run.

    Args:
        job_name: What to call the run.
        model_name: Which model answers.
        input_bytes: Size of all inputs; None when it is not known (standard input).
        max_rows: Most rows that the run takes of them; None takes all.
        clock: Seconds from any fixed start.
    """

    def __init__(
        self,
        *,
        job_name: str,
        model_name: str,
        input_bytes: int | None,
        max_rows: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job_name = job_name
        self._model_name = model_name
        self._input_bytes = input_bytes
        self._max_rows = max_rows
        self._clock = clock
        self._started_s = clock()
        self._phase = Phase.STARTING
        self._phase_started_s = self._started_s
        self._phase_seconds: dict[Phase, float] = {}
        self._samples: deque[_Sample] = deque(maxlen=NUM_SAMPLES_NOW)
        self._history: deque[float] = deque(maxlen=NUM_HISTORY)
        self._engine: EngineStats | None = None
        self._gpu: GpuUsage | None = None
        self._resumed_bytes = 0
        self.done_bytes = 0
        self.num_rows_done = 0
        self.num_rows_resumed = 0
        self.num_rows_max_tokens = 0
        self.num_rows_total: int | None = None
        self.num_surrogates = 0
        self.load_fraction = 0.0
        self.finalize_fraction = 0.0
        self.error_counts: Counter[str] = Counter()
        self.resumed_error_counts: Counter[str] = Counter()

    @property
    def num_rows_error(self) -> int:
        """Rows that ended as errors, those of earlier runs included."""
        return self.error_counts.total()

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        now = self._clock()
        self._phase_seconds = self._seconds_by_phase(now)
        self._phase, self._phase_started_s = phase, now

    def count_resumed(self, counts: JournalCounts) -> None:
        """Count rows that earlier runs finished."""
        self.num_rows_resumed = counts.num_rows
        self.num_rows_done += counts.num_rows
        errors = {code.value: count for code, count in counts.error_counts.items()}
        self.resumed_error_counts.update(errors)
        self.error_counts.update(errors)
        self.num_rows_max_tokens += counts.num_rows_max_tokens

    def uncount_resumed(self, outputs: RequestOutputs) -> None:
        """Take back a row that an earlier run finished with an error: it runs again."""
        error = _first_error(outputs)
        assert error is not None, "only error rows are run again"
        self.num_rows_resumed -= 1
        self.num_rows_done -= 1
        self.error_counts[error.code.value] -= 1
        self.resumed_error_counts[error.code.value] -= 1
        if any(map(_hit_max_tokens, outputs)):
            self.num_rows_max_tokens -= 1

    def count_resumed_bytes(self, num_bytes: int) -> None:
        """Count input bytes whose rows earlier runs finished."""
        self._resumed_bytes += num_bytes
        self.done_bytes += num_bytes

    def count_rows(self, finished: Sequence[RequestOutputs], *, num_bytes: int) -> None:
        """Count rows that this run finished, and the input bytes that they stood for.

        A row counts under its first error, and once if any of its samples hit max_tokens.
        """
        self.num_rows_done += len(finished)
        self.done_bytes += num_bytes
        for outputs in finished:
            if len(outputs) == 1 and outputs[0].finish_reason is FinishReason.STOP:
                continue  # nearly every row: neither an error nor cut
            error = _first_error(outputs)
            if error is not None:
                self.error_counts[error.code.value] += 1
            if any(map(_hit_max_tokens, outputs)):
                self.num_rows_max_tokens += 1

    def observe(self, engine: EngineStats) -> None:
        """Take note of the engine's counters; cheap enough for every step."""
        self._engine = engine
        now = self._clock()
        if self._samples and now - self._samples[-1].time_s < SAMPLE_INTERVAL_S:
            return
        sample = _Sample(now, engine.num_prefill_tokens, engine.num_output_tokens)
        if self._samples:
            previous = self._samples[-1]
            num_new = sample.num_output_tokens - previous.num_output_tokens
            self._history.append(num_new / (now - previous.time_s))
        self._samples.append(sample)
        self._gpu = read_gpu_usage()

    def snapshot(self) -> JobStats:
        """Return the numbers as they are now."""
        now = self._clock()
        seconds = self._seconds_by_phase(now)
        engine = self._engine
        common = JobStats(
            phase=self._phase,
            job_name=self._job_name,
            model_name=self._model_name,
            elapsed_s=now - self._started_s,
            num_rows_done=self.num_rows_done,
            num_rows_resumed=self.num_rows_resumed,
            num_rows_error=self.num_rows_error,
            error_counts=dict(sorted((+self.error_counts).items())),
            num_rows_total=self.num_rows_total,
            input_fraction=self._input_fraction(),
            eta_s=self._eta_s(seconds.get(Phase.RUNNING, 0.0)),
            num_rows_max_tokens=self.num_rows_max_tokens,
            num_surrogates=self.num_surrogates,
            phase_seconds={str(phase): value for phase, value in seconds.items()},
            load_fraction=self.load_fraction,
            finalize_fraction=self.finalize_fraction,
            gpu_memory_used_bytes=self._gpu.memory_used_bytes if self._gpu else None,
            gpu_memory_total_bytes=self._gpu.memory_total_bytes if self._gpu else None,
            gpu_utilization=self._gpu.utilization if self._gpu else None,
        )
        return common if engine is None else self._with_engine(common, engine)

    def _seconds_by_phase(self, now: float) -> dict[Phase, float]:
        earlier = self._phase_seconds.get(self._phase, 0.0)
        return {**self._phase_seconds, self._phase: earlier + now - self._phase_started_s}

    def _with_engine(self, stats: JobStats, engine: EngineStats) -> JobStats:
        prefill_now, decode_now = self._rates_now()
        step_seconds = max(engine.step_seconds, 1e-9)
        return replace(
            stats,
            num_rows_waiting=engine.num_waiting,
            num_rows_running=engine.num_running,
            num_blocks=engine.num_blocks,
            num_blocks_used=engine.num_blocks_used,
            num_blocks_shared=engine.num_blocks_shared,
            num_blocks_cached=engine.num_blocks_cached,
            num_prompt_tokens=engine.num_prompt_tokens,
            num_cached_tokens=engine.num_cached_tokens,
            num_admitted_prompt_tokens=engine.num_admitted_prompt_tokens,
            num_prefill_tokens=engine.num_prefill_tokens,
            num_output_tokens=engine.num_output_tokens,
            num_attended_tokens=engine.num_attended_tokens,
            num_saved_kv_tokens=engine.num_saved_kv_tokens,
            num_preemptions=engine.num_preemptions,
            num_preempted_tokens=engine.num_preempted_tokens,
            prefill_tokens_per_s_now=prefill_now,
            prefill_tokens_per_s_mean=engine.num_prefill_tokens / step_seconds,
            decode_tokens_per_s_now=decode_now,
            decode_tokens_per_s_mean=engine.num_output_tokens / step_seconds,
            decode_history=tuple(self._history),
        )

    def _rates_now(self) -> tuple[float, float]:
        if len(self._samples) < 2:
            return 0.0, 0.0
        first, last = self._samples[0], self._samples[-1]
        seconds = last.time_s - first.time_s
        return (
            (last.num_prefill_tokens - first.num_prefill_tokens) / seconds,
            (last.num_output_tokens - first.num_output_tokens) / seconds,
        )

    def _input_fraction(self) -> float:
        if self.num_rows_total is not None and self.num_rows_done >= self.num_rows_total:
            return 1.0
        return self._fraction(self.done_bytes, self.num_rows_done)

    def _eta_s(self, running_s: float) -> float | None:
        if self._phase is not Phase.RUNNING:
            return None
        resumed = self._fraction(self._resumed_bytes, self.num_rows_resumed)
        done = self._fraction(self.done_bytes, self.num_rows_done)
        return running_s * (1.0 - done) / (done - resumed) if done > resumed else None

    def _fraction(self, num_bytes: int, num_rows: int) -> float:
        """Return the share of the inputs that so many bytes and rows are.

        With a limit the run ends at whichever comes first, the last byte or the last row.
        """
        by_bytes = num_bytes / self._input_bytes if self._input_bytes else 0.0
        by_rows = num_rows / self._max_rows if self._max_rows else 0.0
        return min(1.0, max(by_bytes, by_rows))


def _first_error(outputs: RequestOutputs) -> RowError | None:
    return next((output.error for output in outputs if output.error is not None), None)


def _hit_max_tokens(output: RequestOutput) -> bool:
    return output.finish_reason is FinishReason.LENGTH and output.stop_reason is None
