"""Rows that take too long end as errors, wherever they are, and give back what they hold."""

from pathlib import Path
from typing import Any

import pytest

from nanobatch.engine.core import EngineCore
from nanobatch.errors import EngineError
from nanobatch.request import ErrorCode, FinishReason, RequestOutputs, RowError
from tests.engine.scripted_engine import (
    Asked,
    answer_all,
    answer_samples,
    hashed,
    ids_request,
    is_idle,
    says,
    scripted_engine,
    varied_requests,
)
from tests.null_model import EOS_TOKEN_ID

PROMPT = (40, 41, 42)
FILLER = 50


class HandClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def step(engine: EngineCore) -> list[RequestOutputs]:
    finished = engine.step()
    engine._scheduler.check_integrity()
    return finished


def timeout(elapsed: str, bound: str) -> RowError:
    return RowError(
        code=ErrorCode.TIMEOUT, message=f"row ran {elapsed} s; --row-timeout is {bound} s"
    )


@pytest.mark.parametrize("run_ahead", [0, 1, 3])
def test_a_row_past_its_time_ends_as_an_error_that_says_how_far_it_came(
    run_ahead: int, null_model: Path
) -> None:
    clock = HandClock()
    engine = scripted_engine(
        null_model, says([FILLER]), clock=clock, row_timeout_s=300.0, run_ahead=run_ahead
    )
    engine.add_requests([ids_request(5, PROMPT, max_tokens=90)])
    for _ in range(10):
        assert step(engine) == []
    clock.now_s += 301
    [(output,)] = step(engine)
    assert output.error == timeout("301", "300")
    assert output.row_index == 5
    assert (output.num_prompt_tokens, output.num_completion_tokens) == (3, 11 - run_ahead)
    assert (output.text, output.token_ids, output.finish_reason) == ("", (), None)
    assert not engine.has_unfinished
    assert is_idle(engine)
    # What was in flight for it reaches nobody, and the engine goes on.
    later = answer_all(engine, [ids_request(6, PROMPT, max_tokens=4)])[6]
    assert later.token_ids == (FILLER,) * 4
    assert is_idle(engine)


def test_time_counts_from_the_first_scheduling_and_not_while_a_row_waits(null_model: Path) -> None:
    clock = HandClock()
    engine = scripted_engine(
        null_model, says([FILLER]), clock=clock, row_timeout_s=10.0, max_num_seqs=1
    )
    engine.add_requests([ids_request(row, PROMPT, max_tokens=2) for row in range(4)])
    clock.now_s += 1_000
    order = []
    while engine.has_unfinished:
        finished = step(engine)
        order += [int(output.row_index) for (output,) in finished if output.error is None]
        clock.now_s += 9
    assert order == [0, 1, 2, 3]


def test_time_counts_from_the_first_piece_of_a_prompt(null_model: Path) -> None:
    clock = HandClock()
    engine = scripted_engine(
        null_model, says([FILLER]), clock=clock, row_timeout_s=10.0, max_num_batched_tokens=8
    )
    engine.add_requests([ids_request(0, [40] * 30, max_tokens=5)])
    assert step(engine) == []
    clock.now_s += 11
    [(output,)] = step(engine)
    assert output.error == timeout("11", "10")
    assert output.num_completion_tokens == 0
    assert is_idle(engine)


@pytest.mark.parametrize(("elapsed_s", "is_late"), [(10.0, False), (10.25, True)])
def test_a_row_may_take_exactly_its_time(elapsed_s: float, is_late: bool, null_model: Path) -> None:
    clock = HandClock()
    engine = scripted_engine(null_model, says([FILLER]), clock=clock, row_timeout_s=10.0)
    engine.add_requests([ids_request(0, PROMPT, max_tokens=5)])
    step(engine)
    clock.now_s += elapsed_s
    errors = [output.error for (output,) in step(engine)]
    assert errors == ([timeout("10.25", "10")] if is_late else [])


def test_a_row_that_finishes_in_the_very_step_is_not_late(null_model: Path) -> None:
    clock = HandClock()
    engine = scripted_engine(null_model, says([FILLER]), clock=clock, row_timeout_s=10.0)
    engine.add_requests([ids_request(0, PROMPT, max_tokens=2)])
    step(engine)
    clock.now_s += 99
    [(output,)] = step(engine)
    assert (output.finish_reason, output.error) == (FinishReason.LENGTH, None)


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_the_rows_beside_a_late_one_do_not_notice(run_ahead: int, null_model: Path) -> None:
    def answer(asked: Asked) -> int | None:
        return FILLER if asked.prompt == PROMPT else hashed(asked)

    requests = varied_requests(20)
    expected = answer_all(scripted_engine(null_model, answer), requests)
    clock = HandClock()
    options: dict[str, Any] = {"max_num_seqs": 6, "num_kv_blocks": 16, "run_ahead": run_ahead}
    engine = scripted_engine(null_model, answer, clock=clock, row_timeout_s=25.0, **options)
    endless = ids_request(99, PROMPT, max_tokens=200, ignore_eos=True)
    engine.add_requests([endless, *requests])
    finished: dict[int, RequestOutputs] = {}
    while engine.has_unfinished:
        finished.update((int(samples[0].row_index), samples) for samples in step(engine))
        clock.now_s += 0.5  # the others need fewer than 50 steps
    [late] = finished.pop(99)
    assert late.error is not None
    assert late.error.code is ErrorCode.TIMEOUT
    assert {row: samples[0].token_ids for row, samples in finished.items()} == {
        row: output.token_ids for row, output in expected.items()
    }
    assert is_idle(engine)


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_samples_that_have_ended_keep_their_answers(run_ahead: int, null_model: Path) -> None:
    def answer(asked: Asked) -> int | None:
        is_short = asked.sample_index == 1 and asked.num_generated == 3
        return EOS_TOKEN_ID if is_short else FILLER

    clock = HandClock()
    engine = scripted_engine(
        null_model, answer, clock=clock, row_timeout_s=10.0, run_ahead=run_ahead
    )
    engine.add_requests([ids_request(0, PROMPT, max_tokens=90, n=3)])
    for _ in range(8):
        assert step(engine) == []
    clock.now_s += 11
    [outputs] = step(engine)
    assert [output.error for output in outputs] == [timeout("11", "10"), None, timeout("11", "10")]
    assert [output.sample_index for output in outputs] == [0, 1, 2]
    assert outputs[1].finish_reason is FinishReason.STOP
    assert [output.num_completion_tokens for output in outputs] == [9 - run_ahead, 4, 9 - run_ahead]
    assert engine.stats().num_prompt_tokens == len(PROMPT)
    assert is_idle(engine)


def test_each_sample_has_its_own_time(null_model: Path) -> None:
    clock = HandClock()
    engine = scripted_engine(
        null_model, says([FILLER]), clock=clock, row_timeout_s=10.0, max_num_seqs=1
    )
    engine.add_requests([ids_request(0, PROMPT, max_tokens=3, n=3)])
    while not (finished := step(engine)):
        clock.now_s += 4
    assert [output.error for output in finished[0]] == [None] * 3


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_a_preempted_row_is_late_while_it_waits(run_ahead: int, null_model: Path) -> None:
    clock = HandClock()
    engine = scripted_engine(
        null_model,
        says([FILLER]),
        clock=clock,
        row_timeout_s=10.0,
        run_ahead=run_ahead,
        num_kv_blocks=6,
        block_size=4,
        prior_output_tokens=1,
    )
    engine.add_requests([ids_request(row, [40 + row] * 7, max_tokens=17) for row in range(2)])
    while engine.stats().num_preemptions == 0:
        assert step(engine) == []
        clock.now_s += 0.1
    assert (engine.stats().num_running, engine.stats().num_waiting) == (1, 1)
    clock.now_s += 10
    finished = step(engine)
    assert [output.row_index for (output,) in finished] == [0, 1]
    codes = [output.error.code for (output,) in finished if output.error is not None]
    assert codes == [ErrorCode.TIMEOUT] * 2
    assert is_idle(engine)
    assert answer_all(engine, [ids_request(2, [44] * 7, max_tokens=17)])[2].error is None
    assert is_idle(engine)


def test_readmission_does_not_start_the_time_again(null_model: Path) -> None:
    clock = HandClock()
    engine = scripted_engine(
        null_model,
        says([FILLER]),
        clock=clock,
        row_timeout_s=30.0,
        num_kv_blocks=6,
        block_size=4,
        prior_output_tokens=1,
    )
    engine.add_requests([ids_request(row, [40 + row] * 7, max_tokens=17) for row in range(2)])
    began_s = clock.now_s
    ended_s: dict[int, float] = {}
    while engine.has_unfinished:
        for (output,) in step(engine):
            ended_s[int(output.row_index)] = clock.now_s - began_s
        clock.now_s += 1.5
    assert engine.stats().num_preemptions > 0
    # The first row ran through in 17 steps; the second began again, and its time did not.
    assert ended_s == {0: 24.0, 1: 31.5}


def test_a_launch_that_fails_loses_no_late_row(null_model: Path) -> None:
    clock = HandClock()
    engine = scripted_engine(
        null_model, says([FILLER]), clock=clock, row_timeout_s=10.0, failing_launches=(3,)
    )
    engine.add_requests([ids_request(0, PROMPT, max_tokens=90)])
    for _ in range(3):
        step(engine)
    clock.now_s += 11
    with pytest.raises(EngineError, match="as ordered"):
        step(engine)
    [(output,)] = step(engine)
    assert output.error == timeout("11", "10")


def test_an_aborted_row_is_never_late(null_model: Path) -> None:
    clock = HandClock()
    engine = scripted_engine(null_model, says([FILLER]), clock=clock, row_timeout_s=10.0)
    request = ids_request(0, PROMPT, max_tokens=5)
    engine.add_requests([request])
    step(engine)
    engine.abort([request.row_index])
    clock.now_s += 99
    assert step(engine) == []
    assert answer_all(engine, [request])[0].error is None


def test_without_a_timeout_no_row_is_late(null_model: Path) -> None:
    clock = HandClock()
    engine = scripted_engine(null_model, says([FILLER]), clock=clock)
    engine.add_requests([ids_request(0, PROMPT, max_tokens=4, n=2)])
    while not (finished := step(engine)):
        clock.now_s += 1e9
    assert [output.error for output in finished[0]] == [None, None]


def test_a_timeout_that_nobody_meets_changes_nothing(null_model: Path) -> None:
    requests = varied_requests(20)
    expected = answer_samples(scripted_engine(null_model, hashed), requests)
    engine = scripted_engine(null_model, hashed, row_timeout_s=1e6, run_ahead=1)
    assert answer_samples(engine, requests).keys() == expected.keys()
    assert answer_all(engine, requests) == {
        row: output for row, (output,) in answer_samples(engine, requests).items()
    }
    assert engine._deadlines.late() == []
    assert len(engine._deadlines) == 0
