import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from nanobatch.engine.sampler import Sampler, SampleResult
from nanobatch.engine.sequence import SlotAssignment
from nanobatch.request import SamplingParams
from tests.engine.sampler_reference import (
    EOS,
    VOCAB_SIZE,
    assignment,
    random_assignment,
    reference_token,
)

CPU = torch.device("cpu")


def new_sampler(*, max_num_seqs: int = 8, return_logprobs: bool = False) -> Sampler:
    return Sampler(
        max_num_seqs=max_num_seqs,
        vocab_size=VOCAB_SIZE,
        device=CPU,
        return_logprobs=return_logprobs,
    )


def sample(
    sampler: Sampler, logits: torch.Tensor, slots: Sequence[int], positions: Sequence[int]
) -> SampleResult:
    return sampler.sample(
        logits, np.array(slots, dtype=np.int64), np.array(positions, dtype=np.int64)
    )


def sample_alone(given: SlotAssignment, logits: torch.Tensor) -> int:
    """The next token of one sequence in a sampler of its own."""
    sampler = new_sampler()
    sampler.assign(given)
    position = len(given.prompt_token_ids) + len(given.output_token_ids)
    return int(sample(sampler, logits[None], [given.slot], [position]).token_ids[0])


def random_logits(num_rows: int, *, seed: int, scale: float = 2.0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.normal(0.0, scale, (num_rows, VOCAB_SIZE))).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_parameter_matches_a_plain_python_reference(dtype: torch.dtype) -> None:
    random = np.random.default_rng(1)
    num_rows = 8
    sampler = new_sampler(max_num_seqs=num_rows)
    for trial in range(60):
        logits = random_logits(num_rows, seed=trial)
        given = [random_assignment(slot, random) for slot in random.permutation(num_rows)]
        for one in given:
            sampler.assign(one)
        positions = [len(one.prompt_token_ids) + len(one.output_token_ids) for one in given]
        result = sample(sampler, logits.to(dtype), [one.slot for one in given], positions)
        expected = [
            reference_token(one, row) for one, row in zip(given, logits.tolist(), strict=True)
        ]
        assert result.token_ids.tolist() == expected
        assert not result.is_nan.any()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_tokens_are_drawn_with_the_probabilities_of_the_softmax(temperature: float) -> None:
    num_rows, num_steps = 500, 40
    sampler = new_sampler(max_num_seqs=num_rows)
    for slot in range(num_rows):
        sampler.assign(assignment(slot, SamplingParams(temperature=temperature), seed=slot))
    logits = random_logits(1, seed=3, scale=1.0)
    counts = torch.zeros(VOCAB_SIZE, dtype=torch.float64)
    for step in range(num_steps):
        result = sample(
            sampler, logits.expand(num_rows, -1), range(num_rows), [3 + step] * num_rows
        )
        counts += result.token_ids.bincount(minlength=VOCAB_SIZE)
    expected = (logits[0].double() / temperature).softmax(0) * num_rows * num_steps
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # VOCAB_SIZE - 1 = 60 degrees of freedom: mean 60, standard deviation 11.
    assert chi_square < 60 + 4 * 11


def test_a_row_draws_the_same_alone_in_a_batch_and_in_any_order() -> None:
    random = np.random.default_rng(5)
    logits = random_logits(8, seed=4)
    given = [random_assignment(slot, random) for slot in range(8)]
    positions = np.array([len(one.prompt_token_ids) + len(one.output_token_ids) for one in given])
    alone = [sample_alone(one, row) for one, row in zip(given, logits, strict=True)]
    for _ in range(5):
        order = random.permutation(8)
        sampler = new_sampler()
        for slot in order:
            sampler.assign(given[slot])
        result = sampler.sample(logits[order], order, positions[order])
        assert result.token_ids.tolist() == [alone[slot] for slot in order]


def test_samples_and_seeds_of_one_prompt_differ() -> None:
    logits = torch.zeros(VOCAB_SIZE)
    keys = [(seed, index) for seed in (1, 1 + 2**32, 2**64 - 1) for index in range(8)]
    tokens = [
        sample_alone(assignment(0, SamplingParams(), seed=seed, sample=index), logits)
        for seed, index in keys
    ]
    assert len(set(tokens)) > 12


def test_greedy_takes_the_lowest_id_among_equal_logits() -> None:
    logits = random_logits(4, seed=6)
    logits[:, [11, 3, 40]] = 100.0
    logits[1, 3] = 0.0
    sampler = new_sampler()
    for slot in range(4):
        sampler.assign(assignment(slot, SamplingParams(temperature=5e-6 * (slot % 2))))
    assert sample(sampler, logits, range(4), [3] * 4).token_ids.tolist() == [3, 11, 3, 3]


def test_greedy_and_sampled_rows_share_a_batch_without_changing_each_other() -> None:
    logits = random_logits(6, seed=7)
    greedy, drawn = SamplingParams(temperature=0.0), SamplingParams(temperature=0.8)
    given = [assignment(slot, greedy if slot % 2 else drawn, seed=slot) for slot in range(6)]
    sampler = new_sampler()
    for one in given:
        sampler.assign(one)
    tokens = sample(sampler, logits, range(6), [3] * 6).token_ids.tolist()
    assert tokens == [sample_alone(one, row) for one, row in zip(given, logits, strict=True)]
    assert tokens[1::2] == logits[1::2].argmax(-1).tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(top_p=0.9, top_k=5, min_p=0.1),
        SamplingParams(presence_penalty=0.5, min_tokens=9, logit_bias=((1, 1.0),)),
    ],
)
def test_nan_or_infinity_ends_its_row_only(bad: float, params: SamplingParams) -> None:
    logits = random_logits(5, seed=8)
    given = [assignment(slot, params, seed=slot) for slot in range(5)]
    expected = [sample_alone(one, row) for one, row in zip(given, logits, strict=True)]
    logits[1, 30] = bad
    logits[3, EOS] = bad  # where a ban would hide it
    expected[1] = expected[3] = 0
    sampler = new_sampler()
    for one in given:
        sampler.assign(one)
    result = sample(sampler, logits, range(5), [3] * 5)
    assert result.is_nan.tolist() == [False, True, False, True, False]
    assert result.token_ids.tolist() == expected


def test_minus_infinity_is_legal_until_nothing_is_left_to_draw() -> None:
    logits = torch.full((4, VOCAB_SIZE), -torch.inf)
    logits[:3, [EOS, 17]] = 1.0
    logits[1, 17] = -torch.inf
    sampler = new_sampler()
    sampler.assign(assignment(0, SamplingParams(min_tokens=1)))
    sampler.assign(assignment(1, SamplingParams(min_tokens=1)))
    sampler.assign(assignment(2, SamplingParams(temperature=0.0)))
    sampler.assign(assignment(3, SamplingParams(temperature=0.0)))
    result = sample(sampler, logits, range(4), [3] * 4)
    assert result.is_nan.tolist() == [False, True, False, True]
    assert result.token_ids.tolist() == [17, 0, EOS, 0]


def test_end_tokens_are_banned_until_min_tokens_are_generated() -> None:
    logits = random_logits(1, seed=9)
    logits[0, [EOS, 8]] = torch.tensor([50.0, 40.0])
    sampler = new_sampler()
    sampler.assign(assignment(0, SamplingParams(min_tokens=3, temperature=0.0), eos=(EOS, 8)))
    tokens = [int(sample(sampler, logits, [0], [3 + step]).token_ids[0]) for step in range(5)]
    logits[0, [EOS, 8]] = -math.inf
    assert tokens == [int(logits.argmax())] * 3 + [EOS] * 2


def test_a_returning_sequence_is_penalised_like_one_that_never_left() -> None:
    params = SamplingParams(
        temperature=0.0, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.7
    )
    logits = random_logits(1, seed=10)
    sampler = new_sampler()
    sampler.assign(assignment(2, params))
    uninterrupted = [int(sample(sampler, logits, [2], [3 + i]).token_ids[0]) for i in range(12)]
    assert len(set(uninterrupted)) < 12  # some repeat, so that counts matter
    for num_output in (1, 5, 11):
        sampler.assign(assignment(4, params, output=uninterrupted[:num_output]))
        resumed = [
            int(sample(sampler, logits, [4], [3 + i]).token_ids[0]) for i in range(num_output, 12)
        ]
        assert resumed == uninterrupted[num_output:]


def test_a_reused_slot_keeps_nothing_of_its_previous_sequence() -> None:
    random = np.random.default_rng(11)
    reused = new_sampler()
    heavy = SamplingParams(
        temperature=0.4,
        top_k=2,
        top_p=0.3,
        min_p=0.5,
        min_tokens=50,
        repetition_penalty=5.0,
        presence_penalty=9.0,
        frequency_penalty=9.0,
        logit_bias=((20, 90.0),),
    )
    for trial in range(30):
        logits = random_logits(1, seed=trial)[0]
        reused.assign(assignment(0, heavy, prompt=range(40), output=range(30)))
        sample(reused, logits[None], [0], [70])
        given = random_assignment(0, random)
        reused.assign(given)
        position = len(given.prompt_token_ids) + len(given.output_token_ids)
        token = int(sample(reused, logits[None], [0], [position]).token_ids[0])
        assert token == sample_alone(given, logits)


def test_logprobs_are_those_of_the_logits_as_they_came() -> None:
    params = SamplingParams(temperature=0.5, top_k=3, logit_bias=((1, 4.0),), presence_penalty=1.0)
    logits = random_logits(4, seed=12)
    sampler = new_sampler(return_logprobs=True)
    for slot in range(4):
        sampler.assign(assignment(slot, params, seed=slot))
    result = sample(sampler, logits, range(4), [3] * 4)
    expected = logits.double().log_softmax(-1).gather(1, result.token_ids[:, None]).squeeze(1)
    assert result.logprobs is not None
    assert result.logprobs.dtype == torch.float32
    assert result.logprobs.tolist() == pytest.approx(expected.tolist(), abs=2e-6)


def test_logits_of_the_caller_are_not_changed() -> None:
    random = np.random.default_rng(13)
    logits = random_logits(8, seed=13)
    before = logits.clone()
    for _ in range(10):
        sampler = new_sampler(return_logprobs=True)
        for slot in range(8):
            sampler.assign(random_assignment(slot, random))
        sample(sampler, logits, range(8), [20] * 8)
        assert torch.equal(logits, before)


def test_padding_of_the_vocabulary_is_never_drawn_and_may_hold_anything() -> None:
    logits = random_logits(3, seed=14)
    padding: npt.NDArray[np.float32] = np.array([[1e9, np.nan, np.inf]] * 3, dtype=np.float32)
    padded = torch.cat([logits, torch.from_numpy(padding)], dim=1)
    given = [
        assignment(slot, params, seed=slot)
        for slot, params in enumerate(
            [SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(top_k=4)]
        )
    ]
    sampler = new_sampler()
    for one in given:
        sampler.assign(one)
    result = sample(sampler, padded, range(3), [3] * 3)
    assert result.token_ids.tolist() == [
        sample_alone(one, row) for one, row in zip(given, logits, strict=True)
    ]
    assert not result.is_nan.any()


def test_a_step_without_rows_samples_nothing() -> None:
    result = sample(new_sampler(return_logprobs=True), torch.empty(0, VOCAB_SIZE), [], [])
    assert result.token_ids.shape == (0,)
    assert result.is_nan.shape == (0,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_draws_the_tokens_of_the_cpu() -> None:
    random = np.random.default_rng(15)
    on_cpu = new_sampler(return_logprobs=True)
    on_cuda = Sampler(
        max_num_seqs=8, vocab_size=VOCAB_SIZE, device=torch.device("cuda"), return_logprobs=True
    )
    for trial in range(30):
        logits = random_logits(8, seed=trial)
        logits[3, 5] = math.nan
        for slot in range(8):
            given = random_assignment(slot, random)
            on_cpu.assign(given)
            on_cuda.assign(given)
        for position in range(17, 20):
            expected = sample(on_cpu, logits, range(8), [position] * 8)
            actual = sample(on_cuda, logits.cuda(), range(8), [position] * 8)
            assert actual.token_ids.tolist() == expected.token_ids.tolist()
            assert actual.is_nan.tolist() == expected.is_nan.tolist()
