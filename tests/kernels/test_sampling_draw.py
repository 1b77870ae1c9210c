import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobatch.kernels.sampling_draw import NoiseKeys, argmax_rows, draw_dense, draw_pruned


def noise_keys(num_rows: int, seed: int = 0) -> NoiseKeys:
    random = np.random.default_rng(seed)
    return NoiseKeys(
        seeds=random.integers(0, 2**64, num_rows, dtype=np.uint64),
        samples=random.integers(0, 4, num_rows),
        positions=random.integers(0, 9000, num_rows),
    )


def random_logits(num_rows: int, vocab_size: int, *, scale: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * scale


@settings(max_examples=100, deadline=None)
@given(
    num_rows=st.integers(0, 9),
    vocab_size=st.integers(1, 300),
    scale=st.sampled_from([0.0, 0.1, 1.0, 5.0, 30.0, 1e6, 1e30]),
    share_banned=st.sampled_from([0.0, 0.5, 0.99]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 10_000),
)
def test_pruned_draw_equals_the_dense_one(
    num_rows: int,
    vocab_size: int,
    scale: float,
    share_banned: float,
    dtype: torch.dtype,
    seed: int,
) -> None:
    logits = random_logits(num_rows, vocab_size, scale=scale, seed=seed).to(dtype)
    is_banned = random_logits(num_rows, vocab_size, scale=1.0, seed=seed + 1).abs() < share_banned
    logits[is_banned] = -torch.inf
    keys = noise_keys(num_rows, seed)
    assert draw_pruned(logits, keys).tolist() == draw_dense(logits, keys).tolist()


@pytest.mark.parametrize("vocab_size", [49_152, 50_257])
def test_pruned_draw_equals_the_dense_one_on_large_vocabularies(vocab_size: int) -> None:
    logits = random_logits(12, vocab_size, scale=3.0, seed=1)
    logits[::3] *= 4.0
    logits[1, 100:] = -torch.inf
    keys = noise_keys(12)
    assert draw_pruned(logits, keys).tolist() == draw_dense(logits, keys).tolist()


@pytest.mark.parametrize("draw", [draw_dense, draw_pruned])
def test_rows_that_cannot_be_drawn_give_token_0_and_leave_their_neighbours(draw: object) -> None:
    assert callable(draw)
    logits = random_logits(5, 40, scale=2.0, seed=2)
    keys = noise_keys(5)
    expected = draw(logits, keys).tolist()
    logits[1, 7] = torch.nan
    logits[3] = -torch.inf
    expected[1] = expected[3] = 0
    assert draw(logits, keys).tolist() == expected


@pytest.mark.parametrize("draw", [draw_dense, draw_pruned])
def test_lowest_id_wins_among_equal_scores(draw: object) -> None:
    assert callable(draw)
    logits = torch.zeros(2, 30)
    logits[0, 9:] = 1e12  # float32 steps of 65,536 swallow the noise
    logits[1, 6:] = 1e12
    assert draw(logits, noise_keys(2)).tolist() == [9, 6]


def test_argmax_takes_the_lowest_id_among_equals() -> None:
    scores = random_logits(6, 1000, scale=1.0, seed=3)
    for row in range(6):
        scores[row, [100 * row + 17, 999, 700]] = 9.0
    assert argmax_rows(scores).tolist() == [17, 117, 217, 317, 417, 517]
