"""Several samples of one request: one prompt, one output each, together when the last one ends."""

from pathlib import Path
from typing import Any

import pytest

from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.errors import EngineError
from nanobatch.request import ErrorCode, FinishReason, RequestOutputs
from tests.engine.scripted_engine import (
    Answer,
    Asked,
    ScriptedRunner,
    answer_samples,
    hashed,
    ids_request,
    is_idle,
    says,
    scripted_engine,
)
from tests.null_model import EOS_TOKEN_ID

PROMPT = (40, 41, 42)
LONG_PROMPT = tuple(range(36, 36 + 40))
FILLER = 50


def later_samples_end_earlier(asked: Asked) -> int | None:
    """Sample k generates 4 - k fillers before its end of sequence."""
    if asked.num_generated == 4 - asked.sample_index:
        return EOS_TOKEN_ID
    return FILLER + asked.sample_index


def tokens_by_sample(outputs: RequestOutputs) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_a_request_ends_with_all_its_samples_in_order_once_the_last_one_has(
    run_ahead: int, null_model: Path, tokenizer: Tokenizer
) -> None:
    engine = scripted_engine(null_model, later_samples_end_earlier, run_ahead=run_ahead)
    assert engine.add_requests([ids_request(7, PROMPT, n=4)]) == []
    assert (engine.num_unfinished, engine.stats().num_waiting) == (1, 4)
    finished: list[RequestOutputs] = []
    while not finished:
        assert engine.num_unfinished == 1
        assert engine.stats().num_unfinished_tokens == len(PROMPT)
        finished = engine.step()
    [outputs] = finished
    assert [output.sample_index for output in outputs] == [0, 1, 2, 3]
    assert [output.row_index for output in outputs] == [7] * 4
    assert [output.num_completion_tokens for output in outputs] == [5, 4, 3, 2]
    assert [output.text for output in outputs] == [
        tokenizer.decode([FILLER + sample] * (4 - sample)) for sample in range(4)
    ]
    assert not engine.has_unfinished
    assert is_idle(engine)


@pytest.mark.parametrize("budget", [5, 24, 4096])
def test_the_prompt_of_all_samples_is_computed_once_and_counted_once(
    budget: int, null_model: Path
) -> None:
    runners: list[ScriptedRunner] = []
    engine = scripted_engine(
        null_model, says([FILLER]), max_num_batched_tokens=budget, runners=runners
    )
    outputs = answer_samples(engine, [ids_request(0, LONG_PROMPT, n=5, max_tokens=1)])[0]
    assert [output.num_cached_tokens for output in outputs] == [0, 32, 32, 32, 32]
    assert [output.num_prompt_tokens for output in outputs] == [40] * 5
    # What is left of the prompt after its last full block of 16 is computed by each sample.
    assert runners[0].num_computed_tokens == 40 + 4 * 8
    stats = engine.stats()
    assert (stats.num_prompt_tokens, stats.num_output_tokens) == (40, 5)
    assert (stats.num_admitted_prompt_tokens, stats.num_cached_tokens) == (200, 128)


def test_samples_have_one_seed_and_an_index_each(null_model: Path) -> None:
    runners: list[ScriptedRunner] = []
    engine = scripted_engine(null_model, hashed, runners=runners)
    answer_samples(engine, [ids_request(row, PROMPT, n=3, max_tokens=1) for row in range(2)])
    keys = runners[0].noise_keys
    assert [sample_index for _, sample_index in keys] == [0, 1, 2] * 2
    assert [len({seed for seed, _ in keys[start : start + 3]}) for start in (0, 3)] == [1, 1]
    assert keys[0][0] != keys[3][0]


def test_a_rejected_request_has_one_output_and_one_for_no_tokens_has_all(null_model: Path) -> None:
    engine = scripted_engine(null_model, hashed)
    rejected = ids_request(0, [40] * 600, n=3)
    empty = ids_request(1, PROMPT, n=3, max_tokens=0)
    (error,), answers = engine.add_requests([rejected, empty])
    assert error.error is not None
    assert error.error.code is ErrorCode.PROMPT_TOO_LONG
    assert [(one.sample_index, one.text, one.token_ids, one.error) for one in answers] == [
        (sample, "", (), None) for sample in range(3)
    ]
    assert {one.finish_reason for one in answers} == {FinishReason.LENGTH}
    assert {one.num_prompt_tokens for one in answers} == {len(PROMPT)}
    assert not engine.has_unfinished


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_nan_logits_of_one_sample_cost_this_sample_only(run_ahead: int, null_model: Path) -> None:
    def answer(asked: Asked) -> int | None:
        is_bad = asked.sample_index == 1 and asked.num_generated == 2
        return None if is_bad else FILLER

    engine = scripted_engine(null_model, answer, run_ahead=run_ahead)
    outputs = answer_samples(engine, [ids_request(0, PROMPT, n=3, max_tokens=5)])[0]
    codes = [None if output.error is None else output.error.code for output in outputs]
    assert codes == [None, ErrorCode.NAN_LOGITS, None]
    assert [output.sample_index for output in outputs] == [0, 1, 2]
    assert [output.num_completion_tokens for output in outputs] == [5, 2, 5]
    assert is_idle(engine)


CONFIGURATIONS: list[dict[str, Any]] = [
    {"run_ahead": 2},
    {"max_num_seqs": 2, "max_num_batched_tokens": 7},
    {"enable_prefix_caching": False, "max_num_batched_tokens": 64},
    {"num_kv_blocks": 9, "block_size": 8, "prior_output_tokens": 1, "max_num_seqs": 16},
    {"num_kv_blocks": 9, "block_size": 8, "prior_output_tokens": 1, "run_ahead": 1},
]


@pytest.mark.parametrize("options", CONFIGURATIONS)
def test_a_sample_depends_neither_on_how_many_there_are_nor_on_the_configuration(
    options: dict[str, Any], null_model: Path
) -> None:
    def requests(*, num_samples: int) -> list[Any]:
        return [
            ids_request(row, [*LONG_PROMPT[: 5 * row], 90 + row], n=num_samples, max_tokens=24)
            for row in range(7)
        ]

    expected = answer_samples(scripted_engine(null_model, hashed), requests(num_samples=6))
    for num_samples in (1, 3, 6):
        engine = scripted_engine(null_model, hashed, **options)
        actual = answer_samples(engine, requests(num_samples=num_samples))
        assert {row: tokens_by_sample(outputs) for row, outputs in actual.items()} == {
            row: tokens_by_sample(outputs)[:num_samples] for row, outputs in expected.items()
        }
        assert is_idle(engine)
    assert all(len({*tokens_by_sample(outputs)}) == 6 for outputs in expected.values())
    assert (engine.stats().num_preemptions > 0) == ("prior_output_tokens" in options)


def test_an_aborted_request_leaves_with_all_its_samples(null_model: Path) -> None:
    engine = scripted_engine(null_model, later_samples_end_earlier, run_ahead=1, max_num_seqs=3)
    engine.add_requests([ids_request(row, PROMPT, n=4) for row in range(2)])
    for _ in range(5):
        assert engine.step() == [], "a sample of the first has ended, but not all"
    engine.abort([ids_request(0, PROMPT).row_index])
    assert engine.num_unfinished == 1
    finished = [outputs for of_step in engine.run() for outputs in of_step]
    assert [outputs[0].row_index for outputs in finished] == [1]
    assert is_idle(engine)


def test_a_step_that_is_never_launched_costs_no_sample(null_model: Path) -> None:
    def samples(answer: Answer, **options: Any) -> RequestOutputs:
        engine = scripted_engine(null_model, answer, max_num_batched_tokens=24, **options)
        finished = engine.add_requests([ids_request(0, LONG_PROMPT, n=5, max_tokens=9)])
        while engine.has_unfinished:
            try:
                finished += engine.step()
            except EngineError as error:
                assert "as ordered" in error.message
        assert is_idle(engine)
        return finished[0]

    undisturbed = samples(hashed)
    disturbed = samples(hashed, failing_launches=(0, 1, 3, 8), run_ahead=1)
    assert tokens_by_sample(disturbed) == tokens_by_sample(undisturbed)


def test_the_most_samples_of_a_request_are_answered(null_model: Path) -> None:
    engine = scripted_engine(null_model, hashed, max_num_seqs=20)
    outputs = answer_samples(engine, [ids_request(0, PROMPT, n=128, max_tokens=8)])[0]
    assert [output.sample_index for output in outputs] == list(range(128))
    assert is_idle(engine)
