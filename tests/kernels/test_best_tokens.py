"""The search finds what fp32 logits would have; where a processor cannot pack, tests skip."""

import pytest
import torch

from nanobatch.kernels import best_tokens
from nanobatch.kernels.best_tokens import MAX_CANDIDATES, BestTokenSearch
from nanobatch.kernels.cpu_matrix import PACKED_CHUNK, PrepackedHead, can_prepack

pytestmark = pytest.mark.skipif(
    not can_prepack(torch.empty(1, 1, dtype=torch.bfloat16)), reason="no AMX or AVX-512 BF16"
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(torch.bfloat16)


def search(weight: torch.Tensor) -> BestTokenSearch:
    return BestTokenSearch(PrepackedHead(weight), weight)


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000, PACKED_CHUNK, PACKED_CHUNK + 45])
@pytest.mark.parametrize("num_rows", [1, 7])
def test_the_best_token_has_the_largest_exact_logit(vocab_size: int, num_rows: int) -> None:
    weight, hidden = random(vocab_size, 24), random(num_rows, 24, seed=1)
    best = search(weight).best_tokens(hidden)
    assert not best.is_nan.any()
    assert best.token_ids.tolist() == (hidden.double() @ weight.double().T).argmax(1).tolist()


def test_logits_that_bfloat16_cannot_tell_apart_are_told_apart() -> None:
    """Rows that differ in their last bit, 200 of them, anywhere in a vocabulary of ones."""
    weight = torch.ones(3000, 64, dtype=torch.bfloat16) * 0.5
    places = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[:200]
    weight[places] = 1.0
    hidden = torch.ones(200, 64, dtype=torch.bfloat16)
    hidden[torch.arange(200), torch.arange(200) % 64] = 1.125
    for row, place in enumerate(places.tolist()):
        weight[place, row % 64] += 2.0**-7 * (1 + row // 64)
    exact = hidden.double() @ weight.double().T
    is_wrong = exact.bfloat16().argmax(1) != exact.argmax(1)
    assert is_wrong.sum() > 100, "the case proves less"
    best = search(weight).best_tokens(hidden)
    assert best.token_ids.tolist() == exact.argmax(1).tolist()


def test_among_equals_the_lowest_id_wins() -> None:
    weight = random(500, 16)
    weight[[3, 77, 499]] = weight[[3]] * 8
    hidden = weight[[3, 3]]
    assert search(weight).best_tokens(hidden).token_ids.tolist() == [3, 3]
    assert search(torch.zeros_like(weight)).best_tokens(hidden).token_ids.tolist() == [0, 0]


def test_a_row_with_too_many_candidates_takes_all_of_its_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, hidden = random(3 * MAX_CANDIDATES, 16), random(6, 16, seed=2)
    exact = hidden.double() @ weight.double().T
    for margin in (best_tokens.ROUNDING_MARGIN, 0.5, 4.0):
        monkeypatch.setattr(best_tokens, "ROUNDING_MARGIN", margin)
        assert search(weight).best_tokens(hidden).token_ids.tolist() == exact.argmax(1).tolist()


def test_a_broken_row_is_reported_and_leaves_others_alone() -> None:
    weight, hidden = random(300, 16), random(4, 16, seed=3)
    expected = search(weight).best_tokens(hidden).token_ids
    hidden[1, 5], hidden[2, 0] = torch.nan, torch.inf
    best = search(weight).best_tokens(hidden)
    assert best.is_nan.tolist() == [False, True, True, False]
    assert best.token_ids[[0, 3]].tolist() == expected[[0, 3]].tolist()
