"""The engine around a scripted model: how rows begin, end, fail and leave."""

from pathlib import Path

import pytest

from nanobatch.engine.chunk_length import MAX_DECODE_STEPS
from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.request import ErrorCode, FinishReason, Request, RowError, RowIndex
from tests.engine.scripted_engine import (
    ScriptedRunner,
    answer_all,
    hashed,
    ids_request,
    is_idle,
    says,
    scripted_engine,
    varied_requests,
)
from tests.null_model import EOS_TOKEN_ID

TURN_TOKEN_ID = 2
PROMPT = (40, 41, 42)
FILLER = 50


def test_nothing_to_do_gives_nothing(null_model: Path) -> None:
    engine = scripted_engine(null_model, hashed)
    assert engine.step() == []
    assert list(engine.run()) == []
    assert engine.add_requests([]) == []
    assert not engine.has_unfinished


def test_every_end_of_sequence_id_stops_a_row_and_is_not_in_its_text(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    engine = scripted_engine(null_model, says([FILLER, FILLER, EOS_TOKEN_ID]))
    output = answer_all(engine, [ids_request(0, PROMPT)])[0]
    assert output.finish_reason is FinishReason.STOP
    assert output.stop_reason is None
    assert output.token_ids == (FILLER, FILLER, EOS_TOKEN_ID)
    assert output.num_completion_tokens == 3
    assert output.text == tokenizer.decode([FILLER, FILLER])


def test_special_tokens_are_not_in_the_text(null_model: Path, tokenizer: Tokenizer) -> None:
    engine = scripted_engine(null_model, says([FILLER, TURN_TOKEN_ID, 0, FILLER + 1]))
    output = answer_all(engine, [ids_request(0, PROMPT, max_tokens=4)])[0]
    assert output.token_ids == (FILLER, TURN_TOKEN_ID, 0, FILLER + 1)
    assert output.text == tokenizer.decode([FILLER, FILLER + 1])


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_no_block_counts_as_used_once_all_rows_have_ended(null_model: Path, run_ahead: int) -> None:
    """The last frame of a run is what the engine says when no step follows any more."""
    engine = scripted_engine(null_model, hashed, run_ahead=run_ahead)
    answer_all(engine, [ids_request(row, PROMPT * 10, max_tokens=5) for row in range(3)])
    stats = engine.stats()
    assert (stats.num_blocks_used, stats.num_blocks_shared) == (0, 0)
    assert stats.num_blocks_cached > 0
    engine.reset_prefix_cache()
    assert engine.stats().num_blocks_cached == 0


def test_ignore_eos_runs_to_the_limit(null_model: Path, tokenizer: Tokenizer) -> None:
    engine = scripted_engine(null_model, says([FILLER, EOS_TOKEN_ID]))
    output = answer_all(engine, [ids_request(0, PROMPT, max_tokens=6, ignore_eos=True)])[0]
    assert output.finish_reason is FinishReason.LENGTH
    assert output.token_ids == (FILLER, EOS_TOKEN_ID) * 3
    assert output.text == tokenizer.decode([FILLER] * 3)


def test_a_stop_token_of_the_row_is_named_even_where_eos_is_ignored(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    engine = scripted_engine(null_model, says([FILLER, EOS_TOKEN_ID]))
    params = {"max_tokens": 6, "ignore_eos": True, "stop_token_ids": (EOS_TOKEN_ID,)}
    output = answer_all(engine, [ids_request(0, PROMPT, **params)])[0]
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, EOS_TOKEN_ID)
    assert output.text == tokenizer.decode([FILLER])


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("run_ahead", [0, 2])
def test_prompt_and_answer_never_pass_the_context(
    block_size: int, run_ahead: int, null_model: Path
) -> None:
    runners: list[ScriptedRunner] = []
    for context in (15, 16, 17, 31, 32, 33, 48):
        engine = scripted_engine(
            null_model,
            says([FILLER]),
            max_model_len=context,
            block_size=block_size,
            run_ahead=run_ahead,
            runners=runners,
        )
        requests = [
            ids_request(length, [40 + length] * length, max_tokens=10_000)
            for length in range(1, context + 2)
        ]
        outputs = answer_all(engine, requests)
        for length in range(1, context):
            assert outputs[length].num_completion_tokens == context - length
            assert outputs[length].finish_reason is FinishReason.LENGTH
            assert outputs[length].stop_reason is None
        for length in (context, context + 1):
            error = outputs[length].error
            assert error == RowError(
                code=ErrorCode.PROMPT_TOO_LONG,
                message=f"prompt has {length} tokens; the model's context is {context}",
            )
        assert is_idle(engine)
    assert runners[0].num_launches > 0


@pytest.mark.parametrize(
    ("run_ahead", "num_decode_steps"), [(0, 1), (1, 1), (3, 1), (0, 2), (1, 3), (3, 5)]
)
@pytest.mark.parametrize("budget", [1, 7, 64, 16_384])
def test_answers_depend_neither_on_the_budget_nor_on_what_is_launched_ahead(
    run_ahead: int, num_decode_steps: int, budget: int, null_model: Path
) -> None:
    requests = varied_requests(30)
    expected = answer_all(scripted_engine(null_model, hashed, max_num_seqs=1), requests)
    runners: list[ScriptedRunner] = []
    engine = scripted_engine(
        null_model,
        hashed,
        run_ahead=run_ahead,
        num_decode_steps=num_decode_steps,
        max_num_batched_tokens=budget,
        max_num_seqs=5,
        runners=runners,
    )
    actual = answer_all(engine, requests)
    assert {row: output.token_ids for row, output in actual.items()} == {
        row: output.token_ids for row, output in expected.items()
    }
    assert {row: output.text for row, output in actual.items()} == {
        row: output.text for row, output in expected.items()
    }
    assert runners[0].max_tokens_in_prefill <= budget
    assert is_idle(engine)


def test_a_row_of_no_tokens_is_answered_without_the_model(null_model: Path) -> None:
    runners: list[ScriptedRunner] = []
    engine = scripted_engine(null_model, hashed, runners=runners)
    [(output,)] = engine.add_requests([ids_request(3, PROMPT, max_tokens=0)])
    assert (output.row_index, output.text, output.token_ids) == (3, "", ())
    assert (output.finish_reason, output.num_prompt_tokens) == (FinishReason.LENGTH, 3)
    assert output.error is None
    assert not engine.has_unfinished
    assert runners[0].num_launches == 0


@pytest.mark.parametrize("budget", [5, 24, 4096])
def test_a_shared_prompt_is_computed_once_in_a_cold_run(budget: int, null_model: Path) -> None:
    prompt = list(range(36, 36 + 40))
    runners: list[ScriptedRunner] = []
    engine = scripted_engine(
        null_model, says([FILLER]), max_num_batched_tokens=budget, runners=runners
    )
    requests = [ids_request(row, prompt, max_tokens=1) for row in range(10)]
    outputs = answer_all(engine, requests)
    assert [outputs[row].num_cached_tokens for row in range(10)] == [0] + [32] * 9
    assert runners[0].num_computed_tokens == 40 + 9 * 8
    stats = engine.stats()
    assert (stats.num_admitted_prompt_tokens, stats.num_cached_tokens) == (400, 288)
    assert (stats.num_prompt_tokens, stats.num_output_tokens) == (400, 10)


def test_higher_priority_is_answered_first(null_model: Path) -> None:
    engine = scripted_engine(null_model, says([FILLER]), max_num_seqs=1)
    requests = [
        Request(
            row_index=RowIndex(row),
            input_ids=(40 + row,),
            params=ids_request(0, PROMPT, max_tokens=2).params,
            priority=priority,
        )
        for row, priority in enumerate([0, -5, 3, 0, 3])
    ]
    engine.add_requests(requests)
    order = [int(output.row_index) for finished in engine.run() for (output,) in finished]
    assert order == [2, 4, 0, 3, 1]


def test_rows_that_cannot_run_are_answered_at_once_among_those_that_can(null_model: Path) -> None:
    engine = scripted_engine(null_model, says([FILLER]), num_kv_blocks=2)
    requests = [
        ids_request(0, [40] * 600),
        ids_request(1, [40] * 32),
        ids_request(2, [40] * 31, max_tokens=9),
        ids_request(3, []),
        ids_request(4, [40, 320]),
        ids_request(5, [40, -1]),
        ids_request(6, [40, 2**40]),
        ids_request(7, PROMPT, stop_token_ids=(320,)),
        ids_request(8, PROMPT, logit_bias=((999, 1.0),)),
        ids_request(9, [40] * 600, n=5),
    ]
    outputs = answer_all(engine, requests)
    errors = {row: output.error for row, output in outputs.items() if output.error is not None}
    assert {row: error.code.value for row, error in errors.items()} == {
        0: "prompt_too_long",
        1: "exceeds_kv_capacity",
        3: "empty_prompt",
        4: "bad_params",
        5: "bad_params",
        6: "bad_params",
        7: "bad_params",
        8: "bad_params",
        9: "prompt_too_long",
    }
    assert outputs[2].stop_reason == "kv_capacity"
    assert outputs[2].num_completion_tokens == 2
    assert outputs[0].num_prompt_tokens == 600


def test_noise_seeds_come_from_row_and_run_or_from_the_request(null_model: Path) -> None:
    def noise_seeds(run_seed: int, seed: int | None) -> list[int]:
        runners: list[ScriptedRunner] = []
        engine = scripted_engine(null_model, hashed, seed=run_seed, runners=runners)
        answer_all(engine, [ids_request(row, PROMPT, seed=seed, max_tokens=1) for row in range(3)])
        return [seed for seed, _ in runners[0].noise_keys]

    assert noise_seeds(0, 7) == noise_seeds(1, 7) == [7, 7, 7]
    assert noise_seeds(0, -1) == [2**64 - 1] * 3
    assert len({*noise_seeds(0, None), *noise_seeds(1, None)}) == 6
    assert noise_seeds(2**70, None) == noise_seeds(2**70, None)


def test_prompts_are_computed_again_after_the_prefix_cache_was_reset(null_model: Path) -> None:
    engine = scripted_engine(null_model, hashed)
    prompt = tuple(range(40, 75))
    num_computed = []
    for is_reset in (False, False, True):
        if is_reset:
            engine.reset_prefix_cache()
        before = engine.stats().num_prefill_tokens
        answer_all(engine, [ids_request(0, prompt, max_tokens=1)])
        num_computed.append(engine.stats().num_prefill_tokens - before)
    assert num_computed == [35, 3, 35]


def test_chunks_get_longer_where_the_host_is_slower_than_the_device(null_model: Path) -> None:
    for step_s, most_steps in ((1e-9, MAX_DECODE_STEPS), (1e9, 1), (None, 1)):
        runners: list[ScriptedRunner] = []
        engine = scripted_engine(null_model, says([FILLER]), runners=runners, step_s=step_s)
        answer_all(engine, [ids_request(0, PROMPT, max_tokens=1 + 5 * MAX_DECODE_STEPS)])
        assert max(runners[0].num_steps_of_launches) == most_steps
