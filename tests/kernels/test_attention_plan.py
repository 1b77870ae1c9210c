import numpy as np
import pytest
import torch

from nanobatch.kernels.attention_plan import (
    GATHER_TOKENS,
    GROUP_SCORES,
    MIN_FILL,
    QUERY_TILE,
    Places,
    SharedKeys,
    plan_paged_attention,
)
from tests.kernels.attention_steps import Case, Step, listed


def test_pieces_are_grouped_so_that_padding_and_memory_are_bounded() -> None:
    rng = np.random.default_rng(0)
    lens = [(1, int(n)) for n in rng.integers(1, 3000, 60)] + [(1, 3 * GATHER_TOKENS)]
    lens += [(int(n), int(n) + 40) for n in rng.integers(2, QUERY_TILE, 30)]
    step = Step(Case(lens=tuple(lens), num_heads=1, num_kv_heads=1, head_dim=1))
    plan = plan_paged_attention(step.metadata, block_size=16, window=None)
    seq_of = np.repeat(np.arange(len(lens)), [query_len for query_len, _ in lens])
    tokens: list[int] = []
    for group in plan.groups:
        tokens += set(listed(group.tokens))
        sizes = [lens[row] for row in set(seq_of[listed(group.tokens)].tolist())]
        assert len(sizes) == group.num_pieces
        assert group.num_queries == max(size[0] for size in sizes)
        assert group.num_keys == max(size[1] for size in sizes)
        assert min(size[0] for size in sizes) >= MIN_FILL * group.num_queries
        assert min(size[1] for size in sizes) >= MIN_FILL * group.num_keys
        num_keys = group.num_pieces * group.num_keys
        assert len(sizes) == 1 or num_keys <= GATHER_TOKENS
        assert len(sizes) == 1 or num_keys * group.num_queries <= GROUP_SCORES
    assert sorted(tokens) == list(range(step.metadata.num_tokens))
    assert plan.shared == ()


def test_a_window_bounds_what_is_read() -> None:
    step = Step(Case(lens=((1, 500), (40, 500)), window=30))
    plan = plan_paged_attention(step.metadata, block_size=16, window=30)
    assert sorted(group.num_keys for group in plan.groups) == [30, 30 + 39]


@pytest.mark.parametrize(
    ("tokens", "slots", "expected"),
    [
        (slice(2, 5), torch.arange(32), 2 * 32),
        (torch.tensor([0, 4]), slice(16, 32), 16),
        (slice(0, 1), slice(0, 16), 0),
    ],
)
def test_shared_keys_save_all_readings_but_one(
    tokens: Places, slots: Places, expected: int
) -> None:
    assert SharedKeys(tokens=tokens, slots=slots).num_saved_keys == expected
