"""Counts, rates and the estimate of what is left, by a clock that the test moves."""

from typing import Any

import pytest

from nanobatch.engine.engine_stats import EngineStats
from nanobatch.io.journal_counts import JournalCounts
from nanobatch.job.monitor import NUM_HISTORY, Monitor
from nanobatch.job.stats import Phase
from nanobatch.request import (
    KV_CAPACITY,
    ErrorCode,
    FinishReason,
    RequestOutput,
    RowError,
    RowIndex,
)


class Clock:
    """Stands still unless moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def monitor_of(clock: Clock, input_bytes: int | None = 1_000) -> Monitor:
    return Monitor(job_name="out.jsonl", model_name="m", input_bytes=input_bytes, clock=clock)


def engine_stats(**values: Any) -> EngineStats:
    zeros: dict[str, Any] = dict.fromkeys(EngineStats.__dataclass_fields__, 0)
    return EngineStats(**{**zeros, "step_seconds": 1.0, **values})


def output(
    reason: FinishReason | None = FinishReason.STOP,
    *,
    stop_reason: str | None = None,
    code: ErrorCode | None = None,
) -> RequestOutput:
    error = None if code is None else RowError(code=code, message="x")
    return RequestOutput(
        row_index=RowIndex(0), finish_reason=reason, stop_reason=stop_reason, error=error
    )


def test_a_run_begins_with_nothing_done(clock: Clock) -> None:
    stats = monitor_of(clock).snapshot()
    assert (stats.phase, stats.job_name, stats.model_name) == (Phase.STARTING, "out.jsonl", "m")
    assert (stats.num_rows_done, stats.elapsed_s, stats.eta_s) == (0, 0.0, None)
    assert (stats.input_fraction, stats.num_rows_total) == (0.0, None)


def test_rows_are_counted_by_what_became_of_them(clock: Clock) -> None:
    monitor = monitor_of(clock)
    for one in (
        output(),
        output(FinishReason.LENGTH),
        output(FinishReason.LENGTH, stop_reason=KV_CAPACITY),
        output(None, code=ErrorCode.BAD_ROW),
        output(None, code=ErrorCode.BAD_ROW),
        output(None, code=ErrorCode.NAN_LOGITS),
    ):
        monitor.count_rows([(one,)], num_bytes=100)
    stats = monitor.snapshot()
    assert (stats.num_rows_done, stats.num_rows_error, stats.num_rows_max_tokens) == (6, 3, 1)
    assert stats.error_counts == {"bad_row": 2, "nan_logits": 1}
    assert stats.input_fraction == 0.6


def test_rows_of_earlier_runs_count_as_done(clock: Clock) -> None:
    monitor = monitor_of(clock)
    monitor.count_resumed(
        JournalCounts(
            num_rows=5,
            num_rows_error=2,
            error_counts={ErrorCode.BAD_ROW: 2},
            num_rows_max_tokens=1,
        )
    )
    monitor.count_rows([(output(None, code=ErrorCode.BAD_ROW),)], num_bytes=10)
    stats = monitor.snapshot()
    assert (stats.num_rows_done, stats.num_rows_resumed, stats.num_rows_error) == (6, 5, 3)
    assert stats.error_counts == {"bad_row": 3}
    assert stats.num_rows_max_tokens == 1


def test_the_estimate_goes_by_the_bytes_of_rows_done_in_this_run(clock: Clock) -> None:
    monitor = monitor_of(clock)
    monitor.count_resumed_bytes(500)
    clock.now_s += 60  # loading is not part of the pace
    monitor.enter(Phase.RUNNING)
    assert monitor.snapshot().eta_s is None
    clock.now_s += 10
    monitor.count_rows([(output(),)], num_bytes=100)
    stats = monitor.snapshot()
    assert stats.eta_s == pytest.approx(40.0)
    assert stats.input_fraction == 0.6
    monitor.enter(Phase.FINALIZING)
    assert monitor.snapshot().eta_s is None


def test_an_input_of_unknown_size_has_no_estimate_until_it_ends(clock: Clock) -> None:
    monitor = monitor_of(clock, input_bytes=None)
    monitor.enter(Phase.RUNNING)
    clock.now_s += 10
    monitor.count_rows([(output(),)], num_bytes=100)
    assert (monitor.snapshot().eta_s, monitor.snapshot().input_fraction) == (None, 0.0)
    monitor.num_rows_total = 1
    assert monitor.snapshot().input_fraction == 1.0


def test_seconds_are_kept_by_phase(clock: Clock) -> None:
    monitor = monitor_of(clock)
    for phase, seconds in ((Phase.LOADING, 2), (Phase.RUNNING, 5), (Phase.FINALIZING, 30)):
        clock.now_s += seconds
        monitor.enter(phase)
    clock.now_s += 1
    stats = monitor.snapshot()
    assert stats.phase_seconds == {
        "starting": 2.0,
        "loading model": 5.0,
        "running": 30.0,
        "writing output": 1.0,
    }
    assert stats.elapsed_s == 38.0
    assert sum(stats.phase_seconds.values()) == stats.elapsed_s


def test_rates_are_of_the_last_seconds_and_of_all_steps(clock: Clock) -> None:
    monitor = monitor_of(clock)
    for second in range(100):
        tokens = 10 * second if second < 50 else 500 + 30 * (second - 50)
        monitor.observe(
            engine_stats(
                num_output_tokens=tokens, num_prefill_tokens=second, step_seconds=second / 2
            )
        )
        clock.now_s += 1
    stats = monitor.snapshot()
    assert stats.decode_tokens_per_s_now == pytest.approx(30.0)
    assert stats.prefill_tokens_per_s_now == pytest.approx(1.0)
    assert stats.decode_tokens_per_s_mean == pytest.approx((500 + 30 * 49) / 49.5)
    assert len(stats.decode_history) == NUM_HISTORY
    assert stats.decode_history[-1] == pytest.approx(30.0)


def test_steps_within_half_a_second_share_a_sample(clock: Clock) -> None:
    monitor = monitor_of(clock)
    for step in range(1, 1_001):
        clock.now_s += 0.01
        monitor.observe(engine_stats(num_output_tokens=step, step_seconds=step * 0.01))
    stats = monitor.snapshot()
    assert stats.num_output_tokens == 1_000
    assert 15 <= len(stats.decode_history) <= 20
    assert stats.decode_tokens_per_s_now == pytest.approx(100.0, rel=0.05)


def test_one_step_has_a_mean_and_no_rate_yet(clock: Clock) -> None:
    monitor = monitor_of(clock)
    monitor.observe(engine_stats(num_output_tokens=3, step_seconds=0.0))
    stats = monitor.snapshot()
    assert (stats.decode_tokens_per_s_now, stats.prefill_tokens_per_s_now) == (0.0, 0.0)


def test_the_engines_load_stands_in_the_snapshot(clock: Clock) -> None:
    monitor = monitor_of(clock)
    monitor.observe(
        engine_stats(
            num_waiting=1,
            num_running=2,
            num_blocks=30,
            num_blocks_used=4,
            num_blocks_shared=5,
            num_blocks_cached=6,
            num_admitted_prompt_tokens=200,
            num_cached_tokens=50,
            num_attended_tokens=400,
            num_saved_kv_tokens=300,
            num_preemptions=7,
        )
    )
    stats = monitor.snapshot()
    assert (stats.num_rows_waiting, stats.num_rows_running, stats.num_preemptions) == (1, 2, 7)
    assert (stats.num_blocks_free, stats.prefix_hit_rate) == (15, 0.25)
    assert (stats.num_attended_tokens, stats.num_saved_kv_tokens) == (400, 300)
    assert (stats.kv_saved_rate, monitor_of(clock).snapshot().kv_saved_rate) == (0.75, 0.0)
