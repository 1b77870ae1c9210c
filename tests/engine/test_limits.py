"""What fits an engine: bounds by arithmetic, and the words in which a row is refused."""

from typing import Any

import numpy as np
import pytest

from nanobatch.engine.limits import EngineLimits
from nanobatch.engine.sequence import Sequence
from nanobatch.request import ErrorCode, Request, RowError, RowIndex, SamplingParams

LIMITS = EngineLimits(
    max_model_len=100, kv_capacity_tokens=64, vocab_size=1_320, eos_token_ids=(1, 2)
)
WIDE = EngineLimits(
    max_model_len=8_192, kv_capacity_tokens=1 << 20, vocab_size=1_320, eos_token_ids=(1, 2)
)


def check(limits: EngineLimits, prompt: list[int], **params: Any) -> RowError | None:
    request = Request(
        row_index=RowIndex(0), input_ids=tuple(prompt), params=SamplingParams(**params)
    )
    return limits.check(request, np.array(prompt, dtype=np.int32))


def test_a_prompt_of_the_context_length_has_no_room() -> None:
    assert check(WIDE, [5] * 8_191) is None
    assert check(WIDE, [5] * 8_192) == RowError(
        code=ErrorCode.PROMPT_TOO_LONG,
        message="prompt has 8,192 tokens; the model's context is 8,192",
    )
    assert check(WIDE, [5] * 9_310) == RowError(
        code=ErrorCode.PROMPT_TOO_LONG,
        message="prompt has 9,310 tokens; the model's context is 8,192",
    )


def test_a_prompt_that_with_one_more_token_never_fits_the_kv_cache_is_refused() -> None:
    assert check(LIMITS, [5] * 63) is None
    assert check(LIMITS, [5] * 64) == RowError(
        code=ErrorCode.EXCEEDS_KV_CAPACITY,
        message="prompt has 64 tokens; the KV cache holds 64 with the answer's first",
    )


@pytest.mark.parametrize(
    ("prompt", "params", "where", "token_id"),
    [
        ([5, 1_320], {}, "input_ids", 1_320),
        ([5, -1], {}, "input_ids", -1),
        ([5], {"logit_bias": ((3, 1.0), (1_320, 1.0))}, "logit_bias", 1_320),
        ([5], {"stop_token_ids": (3, 4_000)}, "stop_token_ids", 4_000),
    ],
)
def test_token_ids_outside_the_vocabulary_are_bad_params(
    prompt: list[int], params: dict[str, Any], where: str, token_id: int
) -> None:
    assert check(WIDE, prompt, **params) == RowError(
        code=ErrorCode.BAD_PARAMS,
        message=f"{where} holds token id {token_id}; the vocabulary has 1,320 tokens",
    )


def test_a_text_that_its_tokenizer_spells_outside_the_vocabulary_is_refused() -> None:
    request = Request(row_index=RowIndex(0), prompt="hello")
    assert WIDE.check(request, np.array([5, 1_400], dtype=np.int32)) == RowError(
        code=ErrorCode.BAD_PARAMS,
        message="the prompt holds token id 1400; the vocabulary has 1,320 tokens",
    )


def test_the_first_and_last_ids_of_the_vocabulary_are_good() -> None:
    params = {"logit_bias": ((0, 1.0), (1_319, 1.0)), "stop_token_ids": (0, 1_319)}
    assert check(WIDE, [0, 1_319], **params) is None


@pytest.mark.parametrize(
    ("limits", "asked", "num_prompt_tokens", "expected"),
    [
        (WIDE, None, 10, 4_096),
        (WIDE, None, 8_000, 192),
        (WIDE, 50_000, 10, 8_182),
        (WIDE, 5, 10, 5),
        (WIDE, 0, 10, 0),
        (WIDE, 5, 8_191, 1),
        (LIMITS, None, 10, 55),
        (LIMITS, 54, 10, 54),
        (LIMITS, 9, 63, 2),
    ],
)
def test_max_tokens_is_clipped_to_the_room_left(
    limits: EngineLimits, asked: int | None, num_prompt_tokens: int, expected: int
) -> None:
    assert limits.max_tokens(SamplingParams(max_tokens=asked), num_prompt_tokens) == expected


@pytest.mark.parametrize(
    ("limits", "asked", "num_prompt_tokens", "expected"),
    [
        (WIDE, None, 10, False),
        (WIDE, 50_000, 10, False),
        (LIMITS, None, 10, True),
        (LIMITS, 55, 10, False),
        (LIMITS, 56, 10, True),
    ],
)
def test_only_what_the_kv_cache_cuts_short_is_bound_by_it(
    limits: EngineLimits, asked: int | None, num_prompt_tokens: int, expected: bool
) -> None:
    params = SamplingParams(max_tokens=asked)
    sequence = Sequence(0, np.full(num_prompt_tokens, 5, np.int32), params=params, max_tokens=1)
    assert limits.is_kv_bound(sequence) is expected


def test_context_and_kv_cache_of_one_size_are_the_contexts_end() -> None:
    limits = EngineLimits(max_model_len=65, kv_capacity_tokens=64, vocab_size=10, eos_token_ids=())
    params = SamplingParams()
    sequence = Sequence(0, np.full(10, 5, np.int32), params=params, max_tokens=55)
    assert limits.max_tokens(params, 10) == 55
    assert limits.is_kv_bound(sequence) is False


def test_a_rows_stop_tokens_join_the_models() -> None:
    assert LIMITS.stop_token_ids(SamplingParams()) == (1, 2)
    assert LIMITS.stop_token_ids(SamplingParams(stop_token_ids=(2, 7))) == (1, 2, 7)
    ignoring = SamplingParams(stop_token_ids=(2, 7), ignore_eos=True)
    assert LIMITS.stop_token_ids(ignoring) == (2, 7)
    assert LIMITS.stop_token_ids(SamplingParams(ignore_eos=True)) == ()
