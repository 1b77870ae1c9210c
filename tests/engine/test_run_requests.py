"""A list of requests, run while it is being added."""

from pathlib import Path

import pytest

from nanobatch.engine import run_requests as module
from nanobatch.engine.run_requests import run_requests
from nanobatch.errors import EngineError
from tests.engine.scripted_engine import (
    ScriptedRunner,
    answer_all,
    hashed,
    is_idle,
    scripted_engine,
    varied_requests,
)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 8, 9, 30])
def test_every_request_is_answered_as_when_all_were_added_first(
    num_rows: int, null_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PORTION_ROWS", 8)
    requests = varied_requests(num_rows)
    engine = scripted_engine(null_model, hashed, max_num_seqs=5)
    answers = [output for finished in run_requests(engine, requests) for (output,) in finished]
    assert len(answers) == num_rows
    expected = answer_all(scripted_engine(null_model, hashed, max_num_seqs=5), requests)
    assert {output.row_index: output.token_ids for output in answers} == {
        row: output.token_ids for row, output in expected.items()
    }
    assert is_idle(engine)


def test_the_first_requests_run_while_others_are_added(
    null_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PORTION_ROWS", 8)
    runners: list[ScriptedRunner] = []
    engine = scripted_engine(null_model, hashed, runners=runners)
    running = run_requests(engine, varied_requests(30))
    next(running)
    assert (engine.num_unfinished, runners[0].num_launches) == (8, 0)
    next(running)
    assert runners[0].num_launches == 1
    next(running)
    assert engine.num_unfinished > 8


def test_an_engine_that_failed_expects_no_more(null_model: Path) -> None:
    engine = scripted_engine(null_model, hashed, failing_launches=[0])
    with pytest.raises(EngineError, match="as ordered"):
        list(run_requests(engine, varied_requests(3)))
    assert not engine._scheduler._lifecycle.waiting.expects_more
