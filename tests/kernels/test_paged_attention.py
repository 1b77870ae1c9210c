from dataclasses import replace

import numpy as np
import pytest
import torch

from nanobatch.kernels.attention_plan import (
    QUERY_TILE,
    plan_paged_attention,
)
from tests.kernels.attention_steps import Case, Step, listed

MIXED = ((1, 1), (1, 37), (5, 5), (1, 16), (12, 40), (1, 17), (3, 33), (1, 36), (33, 33))
CASES = {
    "mixed": Case(lens=MIXED),
    "only_decode": Case(lens=tuple((1, length) for length in (9, 64, 1, 8, 63, 10, 1))),
    "only_prefill": Case(lens=((7, 7), (2, 30), (40, 41))),
    "one_token": Case(lens=((1, 1),)),
    "as_many_kv_heads": Case(lens=MIXED, num_kv_heads=4),
    "one_kv_head": Case(lens=MIXED, num_heads=6, num_kv_heads=1),
    "odd_sizes": Case(lens=MIXED, num_heads=9, num_kv_heads=3, head_dim=5, block_size=7),
    "blocks_of_one": Case(lens=MIXED, block_size=1),
    "one_huge_block": Case(lens=MIXED, block_size=256),
    "window": Case(lens=MIXED, window=10),
    "window_of_one": Case(lens=MIXED, window=1),
    "window_longer_than_all": Case(lens=MIXED, window=1000),
    "many_tiles": Case(
        lens=((QUERY_TILE + 3, QUERY_TILE + 40), (1, 5)), num_heads=2, num_kv_heads=1
    ),
    "many_tiles_and_window": Case(
        lens=((QUERY_TILE + 90, QUERY_TILE + 90),), num_heads=2, num_kv_heads=1, window=70
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_one_query_at_a_time_over_a_nan_filled_pool(name: str) -> None:
    step = Step(CASES[name])
    assert float((step.run() - step.expected()).abs().max()) < 1e-12


TREE = Case(
    lens=((1, 180), (1, 194), (1, 131), (9, 140), (1, 200), (1, 80), (1, 128), (1, 60), (1, 162)),
    num_heads=6,
    num_kv_heads=2,
    block_size=32,
    shared=((1, 0, 4), (2, 0, 4), (3, 0, 4), (4, 1, 6), (5, 0, 2), (6, 0, 3), (8, 7, 1)),
)
"""A tree of beginnings of 2 to 6 blocks, a prompt chunk among them, and one not worth a pass."""

DECODING_TREE = replace(TREE, lens=tuple((1, length) for _, length in TREE.lens))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_shared_beginnings_are_read_once_and_change_nothing(dtype: torch.dtype) -> None:
    step = Step(DECODING_TREE, dtype=dtype)
    plan = plan_paged_attention(step.metadata, block_size=32, window=None)
    assert [len(listed(shared.tokens)) for shared in plan.shared] == [7, 5]
    expected = step.expected()
    error = (step.run().double() - expected).abs().max() / expected.abs().max()
    assert float(error) < {torch.float64: 1e-14, torch.float32: 2e-6}.get(dtype, 2e-2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_chunks_of_a_group_attend_to_their_beginning_together(dtype: torch.dtype) -> None:
    """Chunks of 1 to 40 queries, a beginning below the first, and rows that share too little."""
    lens = ((40, 330), (9, 300), (1, 290), (33, 321), (17, 310), (64, 64), (20, 150))
    shared = ((1, 0, 17), (2, 0, 8), (3, 2, 17), (4, 2, 17), (6, 0, 3))
    step = Step(Case(lens=lens, num_heads=6, shared=shared), dtype=dtype)
    plan = plan_paged_attention(step.metadata, block_size=16, window=None)
    tokens = [listed(each.tokens) for each in plan.shared]
    assert sorted(map(len, tokens)) == [1 + 33 + 17, 40 + 9 + 1 + 33 + 17]
    assert max(tokens, key=len) == list(range(100))
    expected = step.expected()
    error = (step.run().double() - expected).abs().max() / expected.abs().max()
    assert float(error) < {torch.float64: 1e-14, torch.float32: 2e-6}.get(dtype, 2e-2)


@pytest.mark.parametrize("query_len", [1, 3])
def test_sharing_can_be_switched_off(query_len: int) -> None:
    shared = tuple((row, 0, 12) for row in range(1, 4))
    step = Step(Case(lens=((query_len, 200),) * 4, shared=shared))
    plans = [
        plan_paged_attention(step.metadata, block_size=16, window=None, shares_keys=shares_keys)
        for shares_keys in (True, False)
    ]
    assert [len(plan.shared) for plan in plans] == [1, 0]
    assert float((step.run() - step.expected()).abs().max()) < 1e-12


def test_a_lost_shared_pass_shows() -> None:
    """The tests above have teeth: a plan without its shared pass gives something else."""
    for lens in (((1, 200),) * 4, ((3, 200),) * 4):
        step = Step(Case(lens=lens, shared=tuple((row, 0, 12) for row in range(1, 4))))
        plan = plan_paged_attention(step.metadata, block_size=16, window=None)
        mutated = replace(plan, shared=())
        assert float((step.run(plan=mutated) - step.expected()).abs().max()) > 0.1


def test_beginnings_are_shared_at_every_depth() -> None:
    num_rows = 24
    shared = tuple((row, 0, 4 if row < 12 else 2) for row in range(1, num_rows))
    case = Case(lens=((1, 70),) * num_rows, shared=(*shared, *((r, 12, 4) for r in range(13, 24))))
    step = Step(case)
    plan = plan_paged_attention(step.metadata, block_size=16, window=None)
    assert [len(listed(each.tokens)) for each in plan.shared] == [24, 12, 12]
    assert all(group.num_keys == 70 - 64 for group in plan.groups)
    assert float((step.run() - step.expected()).abs().max()) < 1e-12


def test_a_window_that_ends_inside_a_beginning_is_respected() -> None:
    step = Step(replace(TREE, window=80))
    assert float((step.run() - step.expected()).abs().max()) < 1e-12


def test_keys_that_lie_together_are_not_gathered() -> None:
    """A pool in order: the only sequence, and a beginning that others share, are read in place."""
    lone = Step(Case(lens=((3, 50),), is_in_order=True))
    plan = plan_paged_attention(lone.metadata, block_size=16, window=None)
    assert [group.slots for group in plan.groups] == [slice(0, 50)]
    assert float((lone.run() - lone.expected()).abs().max()) < 1e-12
    shared = Step(
        Case(
            lens=((1, 90),) * 9,
            shared=tuple((row, 0, 4) for row in range(1, 9)),
            is_in_order=True,
        )
    )
    plan = plan_paged_attention(shared.metadata, block_size=16, window=None)
    assert [each.slots for each in plan.shared] == [slice(0, 64)]
    assert float((shared.run() - shared.expected()).abs().max()) < 1e-12


@pytest.mark.parametrize("seed", range(40))
def test_attention_equals_one_query_at_a_time_in_random_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_kv_heads = int(rng.integers(1, 4))
    lens = []
    for _ in range(int(rng.integers(1, 8))):
        seq_len = int(rng.integers(1, 60))
        lens.append((1 if rng.random() < 0.5 else int(rng.integers(1, seq_len + 1)), seq_len))
    case = Case(
        lens=tuple(lens),
        num_heads=num_kv_heads * int(rng.integers(1, 4)),
        num_kv_heads=num_kv_heads,
        head_dim=int(rng.integers(1, 12)),
        block_size=int(rng.integers(1, 20)),
        window=int(rng.integers(1, 70)) if rng.random() < 0.5 else None,
        seed=seed,
    )
    step = Step(case)
    assert float((step.run() - step.expected()).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)]
)
def test_low_precision_stays_close_to_float64_of_the_same_inputs(
    dtype: torch.dtype, tolerance: float
) -> None:
    step = Step(CASES["mixed"], dtype=dtype)
    expected = step.expected()
    error = (step.run().double() - expected).abs().max() / expected.abs().max()
    assert float(error) < tolerance


def test_every_element_of_the_output_is_written() -> None:
    step = Step(CASES["mixed"])
    first = step.run(out=torch.full_like(step.query, torch.nan))
    second = step.run(out=torch.full_like(step.query, 1e30))
    assert torch.equal(first, second)


def test_a_broken_neighbour_does_not_touch_other_rows() -> None:
    whole = Step(Case(lens=((1, 20), (1, 19), (4, 20), (1, 18))))
    expected = whole.run()
    broken_slots = torch.from_numpy(whole.metadata.block_tables[1, :2].astype(np.int64)) * 16
    whole.cache.keys[0].flatten(0, 1)[broken_slots] = torch.nan
    whole.cache.values[0].flatten(0, 1)[broken_slots] = torch.inf
    actual = whole.run()
    assert not actual[1].isfinite().any()
    others = [0, *range(2, len(actual))]
    assert torch.equal(actual[others], expected[others])


def test_metadata_counts_its_tokens_and_sequences() -> None:
    metadata = Step(CASES["mixed"]).metadata
    assert (metadata.num_seqs, metadata.num_tokens) == (9, 58)
