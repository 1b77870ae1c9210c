"""The draw takes the tokens of `draw_dense`, however a row is split."""

import numpy as np
import pytest
import torch

from nanobatch.kernels.gpu.sampling import DrawShape, draw
from nanobatch.kernels.philox import gumbel_noise_numpy
from nanobatch.kernels.sampling_draw import argmax_rows
from tests.kernels.gpu.sampling_case import SamplingCase

SHAPES = [DrawShape(tile=128, num_splits=3), DrawShape(tile=64, num_splits=1, num_stages=1)]


def draw_case(
    case: SamplingCase,
    device: torch.device,
    *,
    shape: DrawShape | None = None,
    is_active: list[int] | None = None,
) -> tuple[list[int], list[bool]]:
    """Draw from logits that NaN surrounds: padding of the vocabulary and of the rows."""
    num_rows, vocab_size = case.logits.shape
    logits = torch.full((num_rows + 2, vocab_size + 3), torch.nan, device=device)
    logits[:num_rows, :vocab_size] = case.logits
    records = torch.zeros(num_rows + 2, case.rows.itemsize // 4, dtype=torch.int32, device=device)
    records[:num_rows] = case.records(device)
    positions = torch.full((num_rows + 2,), -1, dtype=torch.int32, device=device)
    positions[:num_rows] = case.device_positions(device)
    token_ids, is_nan = draw(
        logits,
        records,
        positions=positions,
        is_active=None if is_active is None else torch.tensor([*is_active, 1, 1], device=device),
        vocab_size=vocab_size,
        shape=shape,
    )
    assert token_ids[num_rows:].tolist() == [0, 0]
    assert is_nan[num_rows:].tolist() == [False, False]
    return token_ids[:num_rows].tolist(), is_nan[:num_rows].tolist()


@pytest.mark.parametrize(("shape", "vocab_size"), [(SHAPES[0], 516), (SHAPES[1], 61)])
def test_sampled_rows_draw_the_reference_tokens(
    device: torch.device, shape: DrawShape, vocab_size: int
) -> None:
    case = SamplingCase.random(5, vocab_size, seed=vocab_size)
    case.logits[2] = 1.0
    case.logits[3] = case.logits[3].round()
    tokens, is_nan = draw_case(case, device, shape=shape)
    assert tokens == case.drawn(case.scaled())
    assert not any(is_nan)


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_rows_take_the_lowest_id_of_the_largest(
    device: torch.device, shape: DrawShape
) -> None:
    case = SamplingCase.random(5, 516, seed=1)
    case.rows["temperature"] = 0.0
    case.logits[:3] = case.logits[:3].round()
    case.logits[3] = -1e30
    tokens, _ = draw_case(case, device, shape=shape)
    assert tokens == argmax_rows(case.logits).tolist()


def test_scores_that_rounding_alone_tells_apart_are_settled_exactly(device: torch.device) -> None:
    case = SamplingCase.random(12, 120, seed=2)
    random = np.random.default_rng(3)
    noise = gumbel_noise_numpy(
        case.rows["noise_seed"],
        case.rows["sample_index"].astype(np.int64),
        positions=case.positions,
        vocab_start=0,
        vocab_size=120,
    )
    for row, temperature in enumerate(case.rows["temperature"]):
        for token in random.choice(120, 4, replace=False):
            score = 40.0 + random.normal() * 2e-6
            case.logits[row, token] = float((score - noise[row, token]) * temperature)
    tokens, _ = draw_case(case, device, shape=DrawShape(tile=64, num_splits=2))
    assert tokens == case.drawn(case.scaled())


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_nan_infinity_and_nothing_to_draw_end_their_row_only(
    device: torch.device, temperature: float
) -> None:
    case = SamplingCase.random(6, 200, seed=4)
    case.rows["temperature"] = temperature
    expected = case.drawn(case.scaled()) if temperature else argmax_rows(case.logits).tolist()
    case.logits[0, 150] = torch.nan
    case.logits[1, 7] = -torch.tensor(torch.nan)
    case.logits[2, 199] = torch.inf
    case.logits[3] = -torch.inf
    case.logits[4, expected[4] - 1] = -torch.inf  # legal
    tokens, is_nan = draw_case(case, device, shape=SHAPES[0])
    assert is_nan == [True] * 4 + [False] * 2
    assert tokens == [0] * 4 + expected[4:]


def test_inactive_rows_draw_nothing(device: torch.device) -> None:
    case = SamplingCase.random(4, 200, seed=5)
    expected = case.drawn(case.scaled())
    case.logits[1] = torch.nan
    tokens, is_nan = draw_case(case, device, is_active=[1, 0, 0, 1])
    assert tokens == [expected[0], 0, 0, expected[3]]
    assert not any(is_nan)


def test_a_batch_without_rows_draws_nothing(device: torch.device) -> None:
    case = SamplingCase.random(0, 61, seed=6)
    token_ids, is_nan = draw(
        case.logits.to(device),
        case.records(device),
        positions=case.device_positions(device),
        is_active=None,
        vocab_size=61,
    )
    assert token_ids.shape == is_nan.shape == (0,)
