"""Sequences: tokens, lengths, slot assignments."""

import numpy as np
import pytest

from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.request import SamplingParams


def sequence(prompt: list[int], **params: object) -> Sequence:
    return Sequence(
        7,
        np.array(prompt, dtype=np.int32),
        params=SamplingParams(**params),  # type: ignore[arg-type]
        max_tokens=10,
        noise_seed=99,
        eos_token_ids=(2,),
    )


def test_new_sequence_waits_and_holds_nothing() -> None:
    seq = sequence([1, 2, 3])
    assert seq.status is SequenceStatus.WAITING
    assert (seq.num_tokens, seq.num_computed_tokens, seq.num_in_flight) == (3, 0, 0)
    assert (seq.slot, len(seq.block_table), seq.num_cached_tokens) == (None, 0, None)
    assert seq.max_num_tokens == 13


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 0, []),
        (0, 2, [1, 2]),
        (1, 3, [2, 3]),
        (2, 4, [3, 40]),
        (0, 5, [1, 2, 3, 40, 50]),
        (3, 5, [40, 50]),
        (4, 5, [50]),
    ],
)
def test_tokens_reach_over_prompt_and_output(start: int, stop: int, expected: list[int]) -> None:
    seq = sequence([1, 2, 3])
    seq.output_token_ids += [40, 50]
    tokens = seq.tokens(start, stop)
    assert tokens.tolist() == expected
    assert tokens.dtype == np.int32


def test_tokens_that_are_not_known_cannot_be_read() -> None:
    with pytest.raises(AssertionError, match="only known tokens"):
        sequence([1, 2, 3]).tokens(2, 4)


def test_prompts_of_other_integer_types_become_int32() -> None:
    seq = Sequence(0, np.array([1, 2], dtype=np.int64), params=SamplingParams(), max_tokens=1)
    assert seq.prompt_token_ids.dtype == np.int32


def test_slot_assignment_carries_what_the_sampler_needs() -> None:
    seq = sequence([1, 2, 3], temperature=0.5)
    seq.output_token_ids += [40]
    seq.slot = 5
    assignment = seq.slot_assignment()
    assert (assignment.slot, assignment.noise_seed, assignment.sample_index) == (5, 99, 0)
    assert assignment.params.temperature == 0.5
    assert assignment.prompt_token_ids.tolist() == [1, 2, 3]
    assert assignment.output_token_ids.tolist() == [40]
    assert assignment.output_token_ids.dtype == np.int32
    assert assignment.eos_token_ids == (2,)


def test_length_is_known_only_if_nothing_but_max_tokens_can_end_it() -> None:
    assert sequence([1], ignore_eos=True).has_known_length
    assert not sequence([1]).has_known_length
    assert not sequence([1], ignore_eos=True, stop=("x",)).has_known_length
    assert not sequence([1], ignore_eos=True, stop_token_ids=(3,)).has_known_length


def test_repr_says_where_the_sequence_is() -> None:
    assert repr(sequence([1, 2])) == (
        "Sequence(seq_id=7, waiting, num_tokens=2, num_computed_tokens=0, num_in_flight=0)"
    )
