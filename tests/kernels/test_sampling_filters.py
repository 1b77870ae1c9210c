import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobatch.kernels.sampling_filters import apply_min_p, apply_top_k, apply_top_p


def random_logits(num_rows: int, vocab_size: int, *, seed: int, num_levels: int) -> torch.Tensor:
    """Logits that repeat where num_levels is small."""
    random = np.random.default_rng(seed)
    levels = random.normal(0.0, 3.0, num_levels)
    return torch.from_numpy(levels[random.integers(0, num_levels, (num_rows, vocab_size))]).float()


def kept_ids(filtered: torch.Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero().squeeze(1).tolist() for row in filtered]


def nucleus_ids(logits: torch.Tensor, top_p: float) -> list[int]:
    """Sort by probability, lower ids first among equals, and take tokens until p is reached."""
    weights = (logits.double() - logits.double().max()).exp().tolist()  # 1 for equals: exact sums
    wanted = top_p * sum(weights)
    kept: list[int] = []
    mass = 0.0
    for token_id in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        if mass >= wanted:
            break
        kept.append(token_id)
        mass += weights[token_id]
    return sorted(kept)


ROWS = {
    "num_rows": st.integers(1, 5),
    "vocab_size": st.sampled_from([1, 7, 160, 2000]),
    "num_levels": st.sampled_from([1, 3, 1000]),
    "seed": st.integers(0, 10_000),
}


@settings(max_examples=40, deadline=None)
@given(**ROWS)
def test_top_k_keeps_the_k_largest_and_their_equals(
    num_rows: int, vocab_size: int, num_levels: int, seed: int
) -> None:
    logits = random_logits(num_rows, vocab_size, seed=seed, num_levels=num_levels)
    top_k = np.random.default_rng(seed).integers(1, min(vocab_size, 40) + 1, num_rows)
    floors = [sorted(row.tolist())[-k] for row, k in zip(logits, top_k, strict=True)]
    expected = [
        [i for i, logit in enumerate(row.tolist()) if logit >= floor]
        for row, floor in zip(logits, floors, strict=True)
    ]
    apply_top_k(logits, torch.from_numpy(top_k))
    assert kept_ids(logits) == expected


@settings(max_examples=40, deadline=None)
@given(top_p=st.floats(0.01, 0.999), **ROWS)
def test_top_p_keeps_the_smallest_set_that_reaches_p(
    num_rows: int, vocab_size: int, num_levels: int, seed: int, top_p: float
) -> None:
    logits = random_logits(num_rows, vocab_size, seed=seed, num_levels=num_levels)
    expected = [nucleus_ids(row, top_p) for row in logits]
    apply_top_p(logits, torch.full((num_rows,), top_p, dtype=torch.float64))
    assert kept_ids(logits) == expected


def test_top_p_widens_its_search_for_flat_rows_only() -> None:
    logits = random_logits(3, 8000, seed=0, num_levels=10_000)
    logits[1] *= 0.01  # a nucleus of thousands between two of dozens
    expected = [nucleus_ids(row, 0.9) for row in logits]
    assert len(expected[1]) > 7000
    apply_top_p(logits, torch.full((3,), 0.9, dtype=torch.float64))
    assert kept_ids(logits) == expected


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.25, 250), (0.2501, 251), (1.0, 1000)])
def test_top_p_keeps_the_lowest_ids_among_equals(top_p: float, num_kept: int) -> None:
    logits = torch.zeros(1, 1000)
    apply_top_p(logits, torch.tensor([top_p], dtype=torch.float64))
    assert kept_ids(logits) == [list(range(num_kept))]


def test_top_p_counts_only_what_top_k_left() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    apply_top_k(logits, torch.tensor([2]))
    apply_top_p(logits, torch.tensor([0.57], dtype=torch.float64))  # 0.4 / 0.7 = 0.571
    assert kept_ids(logits) == [[0]]


def test_a_tiny_top_p_keeps_one_token() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    apply_top_p(logits, torch.tensor([1e-12], dtype=torch.float64))
    assert kept_ids(logits) == [[1]]


@settings(max_examples=40, deadline=None)
@given(min_p=st.floats(0.0, 1.0), **ROWS)
def test_min_p_keeps_tokens_above_its_share_of_the_likeliest(
    num_rows: int, vocab_size: int, num_levels: int, seed: int, min_p: float
) -> None:
    logits = random_logits(num_rows, vocab_size, seed=seed, num_levels=num_levels)
    ratios = [(row.double() - row.double().max()).exp().tolist() for row in logits]
    expected = [[i for i, ratio in enumerate(row) if ratio >= min_p] for row in ratios]
    apply_min_p(logits, torch.full((num_rows,), min_p, dtype=torch.float64))
    assert kept_ids(logits) == expected


def test_filters_leave_a_nan_row_and_its_neighbours_alone() -> None:
    logits = random_logits(3, 4096, seed=1, num_levels=10_000)
    alone = logits[2:].clone()
    logits[1, 5] = torch.nan
    for rows in (logits, alone):
        apply_min_p(rows, torch.full((len(rows),), 0.001, dtype=torch.float64))
        apply_top_k(rows, torch.full((len(rows),), 50))
        apply_top_p(rows, torch.full((len(rows),), 0.8, dtype=torch.float64))
    assert kept_ids(logits[2:]) == kept_ids(alone)
    assert bool(logits[1, 5].isnan())
