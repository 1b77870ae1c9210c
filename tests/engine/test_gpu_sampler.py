"""The GPU's sampler draws the tokens of the reference sampler."""

import math

import numpy as np
import pytest
import torch

from nanobatch.engine.gpu_sampler import GpuSample, GpuSampler
from nanobatch.engine.sampler import Sampler
from nanobatch.engine.sequence import SlotAssignment
from nanobatch.request import SamplingParams
from tests.engine.sampler_reference import EOS, VOCAB_SIZE, assignment, random_assignment

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []


def new_sampler(given: list[SlotAssignment], *, return_logprobs: bool = False) -> GpuSampler:
    sampler = GpuSampler(
        max_num_seqs=8, vocab_size=VOCAB_SIZE, device=DEVICE, return_logprobs=return_logprobs
    )
    for one in given:
        sampler.assign(one)
    return sampler


def next_positions(given: list[SlotAssignment]) -> list[int]:
    return [len(one.prompt_token_ids) + len(one.output_token_ids) for one in given]


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def random_logits(num_rows: int, *, seed: int) -> torch.Tensor:
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.normal(0.0, 2.0, (num_rows, VOCAB_SIZE))).float()


def sample_once(
    given: list[SlotAssignment], logits: torch.Tensor, positions: list[int]
) -> GpuSample:
    sampler = new_sampler(given)
    rows = sampler.upload(
        np.array([one.slot for one in given], dtype=np.int32), num_padded_rows=len(given)
    )
    return sampler.sample(logits.clone().to(DEVICE), rows, positions=int32(positions))


@pytest.mark.parametrize("seed", range(2))
def test_random_batches_match_the_reference_step_by_step(seed: int) -> None:
    random = np.random.default_rng(seed)
    given = [random_assignment(slot, random) for slot in random.permutation(5)]
    slots, positions = [one.slot for one in given], np.array(next_positions(given))
    reference = Sampler(
        max_num_seqs=8, vocab_size=VOCAB_SIZE, device=torch.device("cpu"), return_logprobs=True
    )
    for one in given:
        reference.assign(one)
    sampler = new_sampler(given, return_logprobs=True)
    rows = sampler.upload(np.array(slots, dtype=np.int32), num_padded_rows=7)
    for step in range(2):
        logits = random_logits(5, seed=100 * seed + step)
        expected = reference.sample(logits, np.array(slots), positions + step)
        padded = torch.full((7, VOCAB_SIZE + 3), torch.nan, device=DEVICE)
        padded[:5, :VOCAB_SIZE] = logits
        actual = sampler.sample(padded, rows, positions=int32([*(positions + step).tolist(), 0, 0]))
        assert actual.token_ids.tolist() == [*expected.token_ids.tolist(), 0, 0]
        assert actual.is_nan.tolist() == [False] * 7
        assert actual.logprobs is not None
        assert expected.logprobs is not None
        assert actual.logprobs[:5].tolist() == pytest.approx(expected.logprobs.tolist(), abs=4e-6)
        assert torch.equal(padded[:5, :VOCAB_SIZE].cpu(), logits)  # logprobs are of these


def test_nan_or_infinity_ends_its_row_also_where_a_ban_would_hide_it() -> None:
    params = SamplingParams(
        presence_penalty=0.5, min_tokens=9, logit_bias=((1, 1.0),), top_k=4, temperature=0.9
    )
    given = [assignment(slot, params, seed=slot) for slot in range(4)]
    logits = random_logits(4, seed=8)
    expected = sample_once(given[:1], logits[:1], [3]).token_ids.tolist()
    logits[1, 30], logits[2, EOS], logits[3, EOS] = math.inf, math.inf, math.nan
    sample = sample_once(given, logits, [3] * 4)
    assert sample.is_nan.tolist() == [False, True, True, True]
    assert sample.token_ids.tolist() == [*expected, 0, 0, 0]


def test_bans_end_at_min_tokens_and_can_leave_nothing_to_draw() -> None:
    params = SamplingParams(min_tokens=3, temperature=0.0, logit_bias=((EOS, 5.0),))
    given = [assignment(slot, params, eos=(EOS, 8)) for slot in range(2)]
    logits = torch.full((2, VOCAB_SIZE), -torch.inf)
    logits[:, EOS], logits[:, 8], logits[0, 17] = 50.0, 54.0, 1.0
    tokens = [sample_once(given, logits, [3 + step] * 2) for step in range(4)]
    assert [sample.token_ids[0].item() for sample in tokens] == [17, 17, 17, EOS]
    assert [sample.is_nan[1].item() for sample in tokens] == [True, True, True, False]


def test_only_active_rows_count_their_tokens() -> None:
    params = SamplingParams(temperature=0.0, frequency_penalty=10.0)
    given = [assignment(slot, params) for slot in range(2)]
    sampler = new_sampler(given)
    rows = sampler.upload(np.array([1, 0], dtype=np.int32), num_padded_rows=2)
    logits = random_logits(1, seed=3)[0]
    first, second = logits.argsort(descending=True)[:2].tolist()
    tokens = [
        sampler.sample(
            logits.repeat(2, 1).to(DEVICE),
            rows,
            positions=int32([3 + step] * 2),
            is_active=int32([1, step]),
        ).token_ids.tolist()
        for step in range(2)
    ]
    assert tokens == [[first, 0], [second, first]]


def test_a_reassigned_slot_keeps_nothing_of_its_previous_sequence() -> None:
    heavy = SamplingParams(
        temperature=0.4, top_k=2, min_tokens=50, repetition_penalty=5.0, logit_bias=((20, 90.0),)
    )
    plain = assignment(0, SamplingParams(temperature=0.0))
    sampler = new_sampler([assignment(0, heavy, prompt=range(40), output=range(30)), plain])
    rows = sampler.upload(np.array([0], dtype=np.int32), num_padded_rows=1)
    logits = random_logits(1, seed=4)
    sample = sampler.sample(logits.to(DEVICE), rows, positions=int32([70]))
    assert sample.token_ids.tolist() == [int(logits.argmax())]
    assert (rows.edits, rows.has_filters, rows.has_penalties) == (None, False, False)


def test_slots_without_a_sequence_are_sampled_greedily() -> None:
    sampler = new_sampler([])
    rows = sampler.upload(np.array([5, 2], dtype=np.int32), num_padded_rows=2)
    logits = random_logits(2, seed=5)
    sample = sampler.sample(logits.to(DEVICE), rows, positions=int32([0, 0]))
    assert sample.token_ids.tolist() == logits.argmax(-1).tolist()


def test_memory_that_is_taken_late_is_announced() -> None:
    """The KV pool takes all that is left: a row with penalties must not run out of memory."""
    sampler = new_sampler([])
    announced = sampler.num_late_bytes
    sampler.assign(assignment(0, SamplingParams(presence_penalty=1.0)))
    counts = sampler._token_counts
    assert counts is not None
    assert announced == counts.is_seen.nbytes + counts.num_generated.nbytes
    with_logprobs = new_sampler([], return_logprobs=True)
    assert with_logprobs.num_late_bytes == announced + 8 * VOCAB_SIZE * 4  # logits are copied
