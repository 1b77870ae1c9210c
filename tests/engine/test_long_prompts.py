"""Prompts that are too long for the context: which tokens are kept, exactly, and what is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanobatch.config import LongPrompts
from nanobatch.engine.limits import EngineLimits
from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.request import (
    ErrorCode,
    FinishReason,
    Request,
    RequestOutput,
    RowIndex,
    SamplingParams,
)
from tests.engine.scripted_engine import (
    Asked,
    answer_all,
    answer_samples,
    ids_request,
    is_idle,
    scripted_engine,
)
from tests.engine.written_tokenizers import ids, raw

CONTEXT = 16
BOS = 0
FILLER = 50
CUTTING: list[LongPrompts] = ["truncate-left", "truncate-middle"]


def fitted(
    prompt: list[int],
    policy: LongPrompts,
    *,
    max_tokens: int | None = None,
    context: int = CONTEXT,
    bos_token_id: int | None = BOS,
) -> list[int]:
    limits = EngineLimits(
        max_model_len=context,
        kv_capacity_tokens=1_000,
        vocab_size=320,
        eos_token_ids=(1,),
        long_prompts=policy,
        bos_token_id=bos_token_id,
    )
    params = SamplingParams(max_tokens=max_tokens)
    kept: list[int] = limits.fitted(params, np.array(prompt, dtype=np.int32)).tolist()
    return kept


def numbered(num_tokens: int) -> list[int]:
    return list(range(100, 100 + num_tokens))


@pytest.mark.parametrize("policy", CUTTING)
@pytest.mark.parametrize("max_tokens", [None, 0, 1, 9, 10_000])
def test_a_prompt_that_leaves_room_for_one_token_is_not_cut(
    max_tokens: int | None, policy: LongPrompts
) -> None:
    for num_tokens in (1, CONTEXT - 2, CONTEXT - 1):
        prompt = numbered(num_tokens)
        assert fitted(prompt, policy, max_tokens=max_tokens) == prompt


@pytest.mark.parametrize(
    ("max_tokens", "num_kept"), [(None, 12), (10_000, 12), (4, 12), (3, 13), (1, 15), (0, 15)]
)
@pytest.mark.parametrize("num_tokens", [CONTEXT, CONTEXT + 1, 1_000])
def test_a_longer_prompt_leaves_room_for_its_answer_or_a_quarter_of_the_context(
    num_tokens: int, max_tokens: int | None, num_kept: int
) -> None:
    prompt = numbered(num_tokens)
    left = fitted(prompt, "truncate-left", max_tokens=max_tokens)
    assert left == prompt[num_tokens - num_kept :]
    middle = fitted(prompt, "truncate-middle", max_tokens=max_tokens)
    first, last = num_kept // 2, num_kept - num_kept // 2
    assert middle == prompt[:first] + prompt[num_tokens - last :]
    assert fitted(prompt, "error", max_tokens=max_tokens) == prompt


def test_the_middle_of_a_prompt_one_token_too_long_is_written_out() -> None:
    assert fitted(numbered(17), "truncate-middle", max_tokens=3) == [
        *(100, 101, 102, 103, 104, 105),
        *(110, 111, 112, 113, 114, 115, 116),
    ]


def test_a_leading_bos_stays_before_the_end_of_the_prompt() -> None:
    prompt = [BOS, *numbered(30)]
    assert fitted(prompt, "truncate-left") == [BOS, *prompt[-11:]]
    assert fitted(prompt, "truncate-left", bos_token_id=None) == prompt[-12:]
    assert fitted([7, *prompt], "truncate-left") == prompt[-12:]
    assert fitted(prompt, "truncate-middle") == [*prompt[:6], *prompt[-6:]]


@pytest.mark.parametrize(
    ("context", "left", "middle"),
    [(1, [100, 101, 102], [100, 101, 102]), (2, [102], [102]), (3, [101, 102], [100, 102])],
)
def test_tiny_contexts_leave_room_for_one_token_or_cut_nothing(
    context: int, left: list[int], middle: list[int]
) -> None:
    assert fitted(numbered(3), "truncate-left", context=context) == left
    assert fitted(numbered(3), "truncate-middle", context=context) == middle


def answered_prompts(
    null_model: Path, policy: LongPrompts, requests: list[Request], **options: Any
) -> tuple[dict[int, RequestOutput], set[tuple[int, ...]]]:
    """Return the outputs of rows, and the prompts that the model was asked to continue."""
    prompts: set[tuple[int, ...]] = set()

    def answer(asked: Asked) -> int | None:
        prompts.add(asked.prompt)
        return FILLER

    options = {"max_model_len": CONTEXT, "long_prompts": policy, **options}
    engine = scripted_engine(null_model, answer, **options)
    outputs = answer_all(engine, requests)
    assert is_idle(engine)
    return outputs, prompts


@pytest.mark.parametrize("policy", CUTTING)
def test_the_model_sees_the_cut_prompt_and_the_row_says_what_was_cut(
    policy: LongPrompts, null_model: Path
) -> None:
    prompt = numbered(40)
    outputs, prompts = answered_prompts(null_model, policy, [ids_request(0, prompt)])
    assert prompts == {tuple(fitted(prompt, policy))}
    output = outputs[0]
    assert (output.num_prompt_tokens, output.num_truncated_tokens) == (12, 28)
    assert (output.num_completion_tokens, output.finish_reason) == (4, FinishReason.LENGTH)
    assert output.stop_reason is None
    assert output.error is None


def test_a_text_is_cut_as_its_tokens_are(null_model: Path, tokenizer: Tokenizer) -> None:
    text = "the good answer is of the bad question 日本 👍 " * 40
    whole = ids(tokenizer, raw(text))
    for policy in CUTTING:
        request = Request(row_index=RowIndex(0), prompt=text, params=SamplingParams(max_tokens=2))
        outputs, prompts = answered_prompts(null_model, policy, [request])
        assert prompts == {tuple(fitted(whole, policy, max_tokens=2))}
        assert outputs[0].num_truncated_tokens == len(whole) - 14


def test_a_text_that_would_be_refused_unread_is_encoded_where_it_may_be_cut(
    null_model: Path,
) -> None:
    request = Request(row_index=RowIndex(0), prompt="x" * 200_000)
    outputs, _ = answered_prompts(null_model, "truncate-middle", [request])
    assert outputs[0].error is None
    assert outputs[0].num_truncated_tokens == 200_000 - 12
    refused, _ = answered_prompts(null_model, "error", [request])
    assert refused[0].error is not None
    assert refused[0].error.code is ErrorCode.PROMPT_TOO_LONG
    assert refused[0].num_truncated_tokens == 0


def test_short_prompts_beside_long_ones_are_not_cut(null_model: Path) -> None:
    requests = [ids_request(0, [40] * 5, max_tokens=2), ids_request(1, [41] * 50, max_tokens=2)]
    outputs, prompts = answered_prompts(null_model, "truncate-left", requests)
    assert prompts == {(40,) * 5, (41,) * 14}
    assert [outputs[row].num_truncated_tokens for row in range(2)] == [0, 36]


def test_memory_never_cuts_a_prompt(null_model: Path) -> None:
    """What the context leaves does not fit the KV pool: an error, as on any other machine."""
    outputs, _ = answered_prompts(
        null_model, "truncate-left", [ids_request(0, [40] * 50)], num_kv_blocks=2, block_size=5
    )
    error = outputs[0].error
    assert error is not None
    assert error.code is ErrorCode.EXCEEDS_KV_CAPACITY
    assert error.message.startswith("prompt has 12 tokens; the KV cache holds 10")
    assert (outputs[0].num_prompt_tokens, outputs[0].num_truncated_tokens) == (12, 38)


def test_error_rows_and_empty_answers_say_what_was_cut_too(null_model: Path) -> None:
    prompt = [40] * 50
    requests = [
        ids_request(0, prompt, max_tokens=0),
        ids_request(1, prompt, stop_token_ids=(999,)),
        ids_request(2, prompt, max_tokens=3),
    ]
    engine = scripted_engine(
        null_model, lambda _: None, max_model_len=CONTEXT, long_prompts="truncate-left"
    )
    outputs = answer_all(engine, requests)
    errors = [outputs[row].error for row in range(3)]
    assert [None if error is None else error.code for error in errors] == [
        None,
        ErrorCode.BAD_PARAMS,
        ErrorCode.NAN_LOGITS,
    ]
    assert [outputs[row].num_truncated_tokens for row in range(3)] == [35, 38, 37]
    assert [outputs[row].num_prompt_tokens for row in range(3)] == [15, 12, 13]


def test_all_samples_have_the_same_cut_prompt(null_model: Path) -> None:
    engine = scripted_engine(
        null_model, lambda _: FILLER, max_model_len=CONTEXT, long_prompts="truncate-middle"
    )
    outputs = answer_samples(engine, [ids_request(0, [40] * 50, n=3)])[0]
    assert [output.num_truncated_tokens for output in outputs] == [38] * 3
    assert engine.stats().num_prompt_tokens == 12
