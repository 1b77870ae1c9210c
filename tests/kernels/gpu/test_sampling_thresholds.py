"""Cutoffs keep the tokens that the reference's filters keep, wherever the search finds them."""

import numpy as np
import pytest
import torch

from nanobatch.kernels.gpu.sampling import DrawShape, draw
from nanobatch.kernels.gpu.sampling_thresholds import ThresholdShape, find_cutoffs
from tests.kernels.gpu.sampling_case import SamplingCase

VOCAB_SIZE = 250
FEW_CANDIDATES = ThresholdShape(
    group_size=4, num_candidates=32, row_tile=256, num_pivots=2, num_row_pivots=8, num_warps=4
)
MANY_CANDIDATES = ThresholdShape(group_size=4, num_candidates=256, row_tile=256, num_warps=4)


def check(case: SamplingCase, device: torch.device, shape: ThresholdShape) -> None:
    """Compare what is kept, and the tokens drawn from it, with the reference."""
    expected = case.filtered()
    logits, records = case.logits.to(device), case.records(device)
    cutoffs = find_cutoffs(logits, records, is_active=None, vocab_size=VOCAB_SIZE, shape=shape)
    limits = cutoffs.limits.cpu()
    least = limits[:, :1].contiguous().view(torch.float32)
    scaled, ids = case.scaled(), torch.arange(VOCAB_SIZE)
    is_kept = (scaled > least) | ((scaled == least) & (ids <= limits[:, 1:]))
    assert torch.equal(is_kept, expected > -torch.inf)
    tokens, is_nan = draw(
        logits,
        records,
        positions=case.device_positions(device),
        is_active=None,
        vocab_size=VOCAB_SIZE,
        cutoffs=cutoffs,
        shape=DrawShape(tile=256, num_splits=1),
    )
    assert tokens.tolist() == case.drawn(expected)
    assert not is_nan.any()


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        (FEW_CANDIDATES, "random"),
        (FEW_CANDIDATES, "rounded"),
        (FEW_CANDIDATES, "uniform"),
        (MANY_CANDIDATES, "rounded"),
    ],
)
def test_filters_keep_what_the_reference_keeps(
    device: torch.device, shape: ThresholdShape, kind: str
) -> None:
    case = SamplingCase.random(8, VOCAB_SIZE, seed=1, filtered=True)
    case.rows["top_k"] = [7, 1, 100, VOCAB_SIZE, VOCAB_SIZE, VOCAB_SIZE, 15, 240]
    case.rows["top_p"] = [0.95, 1.0, 1.0, 0.3, 0.97, 1.0, 0.5, 0.9999]
    case.rows["log_min_p"] = np.log([1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 0.1, 0.02, 1e-4])
    case.rows["log_min_p"][[0, 1, 3, 4]] = -np.inf
    if kind == "rounded":
        case.logits.round_()
    elif kind == "uniform":
        case.logits[:] = -2.5
    check(case, device, shape)


def test_ties_at_the_cutoff_keep_the_lowest_ids(device: torch.device) -> None:
    case = SamplingCase.random(3, VOCAB_SIZE, seed=2, filtered=True)
    case.rows["top_p"] = [0.5, 0.9, 0.01]
    case.rows["temperature"] = 1.0
    case.logits[:] = -torch.inf
    case.logits[:, [5, 90, 200, 201, 249]] = 3.0
    case.logits[:, [4, 220]] = 1.0
    check(case, device, FEW_CANDIDATES)


def test_an_unusable_row_is_left_to_the_draw(device: torch.device) -> None:
    case = SamplingCase.random(3, VOCAB_SIZE, seed=3, filtered=True)
    case.rows["top_k"] = 5
    case.logits[0, 3] = torch.nan
    case.logits[1, 249] = torch.inf
    case.logits[2] = -torch.inf
    logits, records = case.logits.to(device), case.records(device)
    cutoffs = find_cutoffs(
        logits, records, is_active=None, vocab_size=VOCAB_SIZE, shape=FEW_CANDIDATES
    )
    _, is_nan = draw(
        logits,
        records,
        positions=case.device_positions(device),
        is_active=None,
        vocab_size=VOCAB_SIZE,
        cutoffs=cutoffs,
        shape=DrawShape(tile=256, num_splits=1),
    )
    assert is_nan.tolist() == [True] * 3
