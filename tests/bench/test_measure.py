"""Measuring: warm-up, repeats, exact counts, and runs that are watched, on a fake engine."""

from collections.abc import Callable

import pytest

from nanobatch.bench.engines.measured_engine import Counts, OnTokens, PreparedRun
from nanobatch.bench.events import Event, Repeat, Timeline
from nanobatch.bench.measure import MeasurePlan, measure
from nanobatch.bench.workloads import Workload
from nanobatch.errors import EngineError
from tests.bench.machines import small_workload


class FakeEngine:
    """Generates what it is asked for, less what it is told to leave out."""

    version = "0"

    def __init__(self, change: Callable[[list[int]], list[int]] = lambda lens: lens) -> None:
        self._change = change
        self.calls: list[str] = []

    def prepare(self, workload: Workload) -> PreparedRun:
        self.calls.append("prepare")

        def run(on_tokens: OnTokens | None) -> Counts:
            self.calls.append("run" if on_tokens is None else "watched run")
            if on_tokens is not None:
                on_tokens(workload.num_output_tokens)
            return Counts(
                output_lens=self._change(list(workload.output_lens)),
                num_prefill_tokens=7,
                num_cached_tokens=3,
            )

        return run

    def warm_up(self, workload: Workload) -> None:
        self.calls.append(f"warm up {workload.name}")

    def close(self) -> None:
        self.calls.append("close")


def measured(engine: FakeEngine, plan: MeasurePlan) -> list[Event]:
    events: list[Event] = []
    measure(engine, small_workload(), plan, engine_name="fake", on_event=events.append)
    return events


def test_repeats_come_after_the_warm_up_each_with_a_fresh_start() -> None:
    engine = FakeEngine()
    events = measured(engine, MeasurePlan(num_warmups=2, num_repeats=3))
    assert engine.calls == ["warm up custom"] * 2 + ["prepare", "run"] * 3
    assert len(events) == 3
    for event in events:
        assert isinstance(event, Repeat)
        assert event.num_output_tokens == small_workload().num_output_tokens
        assert (event.num_prefill_tokens, event.num_cached_tokens) == (7, 3)
        assert event.seconds > 0


def test_a_watched_run_is_one_more_and_is_not_measured() -> None:
    engine = FakeEngine()
    events = measured(engine, MeasurePlan(num_warmups=0, num_repeats=1, has_timeline=True))
    assert engine.calls == ["prepare", "run", "prepare", "watched run"]
    assert [type(event) for event in events] == [Repeat, Timeline]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda lens: [lens[0] - 1, *lens[1:]], "custom: prompt 0 was continued by"),
        (lambda lens: [*lens[:-1], lens[-1] + 1], "custom: prompt 5 was continued by"),
        (lambda lens: lens[1:], "custom: the engine answered 5 of 6 prompts"),
    ],
)
def test_an_engine_that_generates_anything_else_is_refused(
    change: Callable[[list[int]], list[int]], error: str
) -> None:
    with pytest.raises(EngineError, match=error):
        measured(FakeEngine(change), MeasurePlan())
