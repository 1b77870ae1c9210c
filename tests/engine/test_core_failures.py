"""What goes wrong in an engine stays where it went wrong: NaN, failed launches, aborted rows."""

from pathlib import Path

import pytest

from nanobatch.errors import EngineError
from nanobatch.request import ErrorCode, RowError, RowIndex
from tests.engine.scripted_engine import (
    Asked,
    answer_all,
    hashed,
    ids_request,
    is_idle,
    scripted_engine,
    varied_requests,
)

TURN_TOKEN_ID = 2
PROMPT = (40, 41, 42)
FILLER = 50


@pytest.mark.parametrize(("run_ahead", "num_decode_steps"), [(0, 1), (2, 1), (1, 4)])
def test_a_row_of_nan_logits_ends_and_no_other_does(
    run_ahead: int, num_decode_steps: int, null_model: Path
) -> None:
    def answer(asked: Asked) -> int | None:
        bad_after = {101: 0, 105: 4}.get(asked.prompt[-1])
        return None if asked.num_generated == bad_after else hashed(asked)

    requests = varied_requests(12)
    rows = range(12)
    expected = answer_all(scripted_engine(null_model, hashed), requests)
    engine = scripted_engine(
        null_model, answer, run_ahead=run_ahead, num_decode_steps=num_decode_steps
    )
    actual = answer_all(engine, requests)
    errors = {row: actual[row].error for row in rows if actual[row].error is not None}
    # Row 5 generates five tokens or more, so it meets its fifth place.
    assert errors == {
        1: RowError(
            code=ErrorCode.NAN_LOGITS,
            message="the model's logits for output token 0 hold NaN or +inf",
        ),
        5: RowError(
            code=ErrorCode.NAN_LOGITS,
            message="the model's logits for output token 4 hold NaN or +inf",
        ),
    }
    assert (actual[5].num_completion_tokens, actual[5].text, actual[5].finish_reason) == (
        4,
        "",
        None,
    )
    good = [row for row in rows if row not in errors]
    assert [actual[row].token_ids for row in good] == [expected[row].token_ids for row in good]
    assert is_idle(engine)


@pytest.mark.parametrize(("run_ahead", "num_decode_steps"), [(0, 1), (2, 1), (1, 4)])
@pytest.mark.parametrize("failing_launches", [(0,), (1,), (4,), (0, 1, 2, 9)])
def test_a_launch_that_fails_is_rolled_back_and_the_engine_goes_on(
    failing_launches: tuple[int, ...], run_ahead: int, num_decode_steps: int, null_model: Path
) -> None:
    requests = varied_requests(20)
    expected = answer_all(scripted_engine(null_model, hashed), requests)
    engine = scripted_engine(
        null_model,
        hashed,
        failing_launches=failing_launches,
        run_ahead=run_ahead,
        num_decode_steps=num_decode_steps,
        max_num_seqs=6,
        max_num_batched_tokens=24,
    )
    outputs = engine.add_requests(requests)
    num_failures = 0
    for _ in range(1_000):  # far more steps than it takes: a lost row must not hang the test
        try:
            outputs += engine.step()
        except EngineError:
            num_failures += 1
    assert not engine.has_unfinished
    assert num_failures == len(failing_launches)
    assert {int(output.row_index): output.token_ids for (output,) in outputs} == {
        row: output.token_ids for row, output in expected.items()
    }
    assert is_idle(engine)


@pytest.mark.parametrize(("run_ahead", "num_decode_steps"), [(0, 1), (2, 1), (1, 4)])
def test_aborted_rows_leave_and_the_others_do_not_notice(
    run_ahead: int, num_decode_steps: int, null_model: Path
) -> None:
    requests = varied_requests(24)
    expected = answer_all(scripted_engine(null_model, hashed), requests)
    engine = scripted_engine(
        null_model, hashed, run_ahead=run_ahead, num_decode_steps=num_decode_steps, max_num_seqs=5
    )
    outputs = engine.add_requests(requests)
    outputs += engine.step()
    done = {int(output.row_index) for (output,) in outputs}
    aborted = [row for row in (1, 2, 8, 21, 23) if row not in done]
    engine.abort([*(RowIndex(row) for row in aborted), RowIndex(1), RowIndex(999)])
    assert engine.num_unfinished == 24 - len(done) - len(aborted)
    for finished in engine.run():
        outputs += finished
    assert {int(output.row_index): output.token_ids for (output,) in outputs} == {
        row: output.token_ids for row, output in expected.items() if row not in aborted
    }
    assert is_idle(engine)


def test_an_aborted_row_may_come_again_at_once(null_model: Path) -> None:
    engine = scripted_engine(null_model, hashed, run_ahead=2)
    request = ids_request(0, PROMPT, max_tokens=20, ignore_eos=True)
    expected = answer_all(engine, [request])[0]
    engine.add_requests([request])
    engine.step()
    engine.step()
    engine.abort([request.row_index])
    assert not engine.has_unfinished
    assert answer_all(engine, [request])[0].token_ids == expected.token_ids
    assert is_idle(engine)


def test_a_row_index_that_is_still_unfinished_is_refused(null_model: Path) -> None:
    engine = scripted_engine(null_model, hashed)
    request = ids_request(0, PROMPT, max_tokens=3)
    engine.add_requests([request])
    with pytest.raises(AssertionError, match="row_index"):
        engine.add_requests([request])
    outputs = [output for finished in engine.run() for (output,) in finished]
    assert [output.row_index for output in outputs] == [0]
    assert is_idle(engine)


def test_an_engine_is_closed_once_and_for_all(null_model: Path) -> None:
    engine = scripted_engine(null_model, hashed)
    engine.add_requests([ids_request(0, PROMPT, max_tokens=5)])
    engine.step()
    engine.close()
    engine.close()
    assert not engine.has_unfinished
    engine.add_requests([ids_request(1, PROMPT, max_tokens=5)])
    with pytest.raises(EngineError, match="closed"):
        engine.step()


def test_a_runner_that_always_fails_keeps_its_rows(null_model: Path) -> None:
    engine = scripted_engine(null_model, hashed, failing_launches=range(100))
    engine.add_requests([ids_request(0, PROMPT, max_tokens=5)])
    for _ in range(3):
        with pytest.raises(EngineError, match="as ordered"):
            engine.step()
    assert engine.num_unfinished == 1
