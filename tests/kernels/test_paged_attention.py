from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.attention_plan import (
    GATHER_TOKENS,
    GROUP_SCORES,
    MIN_FILL,
    QUERY_TILE,
    plan_paged_attention,
)
from nanobatch.kernels.kv_cache import KVCache, KVCacheSpec, store_keys_values
from nanobatch.kernels.paged_attention import paged_attention

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step: (query_len, seq_len) of each sequence, and the sizes around it.

    `shared` has (row, earlier row, blocks at the beginning that it has in common with that row).
    """

    lens: tuple[tuple[int, int], ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    block_size: int = 16
    window: int | None = None
    seed: int = 0
    shared: tuple[tuple[int, int, int], ...] = ()
    is_in_order: bool = False


class Step:
    """Random queries, keys and values of a case; the keys lie scattered in a NaN-filled pool."""

    def __init__(self, case: Case, *, dtype: torch.dtype = torch.float64) -> None:
        self.case = case
        rng = torch.Generator().manual_seed(case.seed)
        self.scale = 0.3
        shape = (case.num_kv_heads, case.head_dim)
        self.keys = [self._random(rng, (seq_len, *shape), dtype) for _, seq_len in case.lens]
        self.values = [self._random(rng, (seq_len, *shape), dtype) for _, seq_len in case.lens]
        for row, earlier, num_blocks in case.shared:
            num_shared = num_blocks * case.block_size
            self.keys[row][:num_shared] = self.keys[earlier][:num_shared]
            self.values[row][:num_shared] = self.values[earlier][:num_shared]
        num_tokens = sum(query_len for query_len, _ in case.lens)
        self.query = self._random(rng, (num_tokens, case.num_heads, case.head_dim), dtype)
        self.cache, self.metadata = self._paged(dtype)

    def run(self, *, out: torch.Tensor | None = None) -> torch.Tensor:
        plan = plan_paged_attention(
            self.metadata, block_size=self.case.block_size, window=self.case.window
        )
        return paged_attention(
            self.query,
            self.cache.keys[0],
            self.cache.values[0],
            plan=plan,
            scale=self.scale,
            out=torch.full_like(self.query, torch.nan) if out is None else out,
        )

    def expected(self) -> torch.Tensor:
        """Compute each query of each head by itself, in float64."""
        rows = []
        token = 0
        per_kv_head = self.case.num_heads // self.case.num_kv_heads
        for (query_len, seq_len), keys, values in zip(
            self.case.lens, self.keys, self.values, strict=True
        ):
            for position in range(seq_len - query_len, seq_len):
                low = 0 if self.case.window is None else max(0, position + 1 - self.case.window)
                for head in range(self.case.num_heads):
                    key = keys[low : position + 1, head // per_kv_head].double()
                    value = values[low : position + 1, head // per_kv_head].double()
                    scores = key @ self.query[token, head].double() * self.scale
                    rows.append(torch.softmax(scores, 0) @ value)
                token += 1
        return torch.stack(rows).view(self.query.shape)

    def _random(
        self, rng: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) * 2

    def _paged(self, dtype: torch.dtype) -> tuple[KVCache, AttentionMetadata]:
        case = self.case
        seq_lens = np.array([seq_len for _, seq_len in case.lens], np.int32)
        query_lens = np.array([query_len for query_len, _ in case.lens], np.int32)
        num_blocks_each = -(-seq_lens // case.block_size)
        order = np.arange(num_blocks_each.sum() + 2)
        if not case.is_in_order:
            order = np.random.default_rng(case.seed).permutation(order)
        # Entries past a sequence's end name a block that is not in the pool: never read.
        tables = np.full((len(seq_lens), num_blocks_each.max() + 1), 10**6, np.int32)
        for row, (count, end) in enumerate(
            zip(num_blocks_each, np.cumsum(num_blocks_each), strict=True)
        ):
            tables[row, :count] = order[end - count : end]
        for row, earlier, num_blocks in case.shared:
            tables[row, :num_blocks] = tables[earlier, :num_blocks]
        spec = KVCacheSpec(num_kv_heads=case.num_kv_heads, head_dim=case.head_dim, dtype=dtype)
        cache = KVCache.allocate(
            [spec], num_blocks=len(order), block_size=case.block_size, device=CPU
        )
        for pool in (cache.keys[0], cache.values[0]):
            pool.fill_(torch.nan)
        slots = []
        for row, seq_len in enumerate(seq_lens):
            positions = np.arange(seq_len)
            blocks = tables[row, positions // case.block_size].astype(np.int64)
            slots.append(blocks * case.block_size + positions % case.block_size)
        store_keys_values(
            torch.cat(self.keys),
            torch.cat(self.values),
            cache.keys[0],
            cache.values[0],
            slot_mapping=torch.from_numpy(np.concatenate(slots)),  # twice the same where shared
        )
        ends = zip(slots, query_lens, strict=True)
        metadata = AttentionMetadata.from_arrays(
            query_start_loc=np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32),
            seq_lens=seq_lens,
            block_tables=tables,
            slot_mapping=np.concatenate([slot[-count:] for slot, count in ends]),
            device=CPU,
        )
        return cache, metadata


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_shared_beginnings_are_read_once_and_change_nothing(dtype: torch.dtype) -> None:
    step = Step(TREE, dtype=dtype)
    plan = plan_paged_attention(step.metadata, block_size=32, window=None)
    assert [len(shared.tokens) for shared in plan.shared] == [6]
    expected = step.expected()
    error = (step.run().double() - expected).abs().max() / expected.abs().max()
    assert float(error) < {torch.float64: 1e-14, torch.float32: 2e-6}.get(dtype, 2e-2)


def test_beginnings_are_shared_at_every_depth() -> None:
    num_rows = 24
    shared = tuple((row, 0, 4 if row < 12 else 2) for row in range(1, num_rows))
    case = Case(lens=((1, 70),) * num_rows, shared=(*shared, *((r, 12, 4) for r in range(13, 24))))
    step = Step(case)
    plan = plan_paged_attention(step.metadata, block_size=16, window=None)
    assert [len(each.tokens) for each in plan.shared] == [24, 12, 12]
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


def test_pieces_are_grouped_so_that_padding_and_memory_are_bounded() -> None:
    rng = np.random.default_rng(0)
    lens = [(1, int(n)) for n in rng.integers(1, 3000, 60)] + [(1, 3 * GATHER_TOKENS)]
    lens += [(int(n), int(n) + 40) for n in rng.integers(2, QUERY_TILE, 30)]
    step = Step(Case(lens=tuple(lens), num_heads=1, num_kv_heads=1, head_dim=1))
    plan = plan_paged_attention(step.metadata, block_size=16, window=None)
    seq_of = np.repeat(np.arange(len(lens)), [query_len for query_len, _ in lens])
    tokens: list[int] = []
    for group in plan.groups:
        tokens += set(group.tokens.tolist())
        sizes = [lens[row] for row in set(seq_of[group.tokens.tolist()].tolist())]
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


def test_metadata_counts_its_tokens_and_sequences() -> None:
    metadata = Step(CASES["mixed"]).metadata
    assert (metadata.num_seqs, metadata.num_tokens) == (9, 58)
