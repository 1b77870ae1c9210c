"""Events between processes: what is written is what is read."""

import pytest

from nanobatch.bench.events import (
    Event,
    Failed,
    Finished,
    KernelTime,
    Loaded,
    Machine,
    Profile,
    Repeat,
    Timeline,
    decode_event,
    encode_event,
)
from tests.bench.machines import h200

EVENTS: list[Event] = [
    Machine(hardware=h200(), dtype="bfloat16", versions={"torch": "2.11"}),
    Loaded(engine_version="1", seconds=2.5),
    Repeat(
        workload="w",
        seconds=1.5,
        num_output_tokens=1,
        num_prefill_tokens=2,
        num_cached_tokens=3,
    ),
    Profile(
        workload="w",
        trace="t.json.gz",
        window_s=2.0,
        idle_share=None,
        host_gap_share=None,
        kernels=(KernelTime(name="k\n", num_calls=1, seconds=0.1, share=1.0),),
    ),
    Timeline(workload="w", seconds=[0.0, 1.0], num_tokens=[0, 5]),
    Failed(error="EngineError", message="m", hint=None),
    Finished(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_one_line_and_comes_back(event: Event) -> None:
    line = encode_event(event)
    assert "\n" not in line
    assert decode_event(line) == event
