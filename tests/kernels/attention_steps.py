"""Random steps over a NaN-filled pool, and their attention one query at a time in float64."""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.attention_plan import AttentionPlan, Places, plan_paged_attention
from nanobatch.kernels.kv_cache import KVCache, KVCacheSpec, store_keys_values
from nanobatch.kernels.paged_attention import paged_attention

CPU = torch.device("cpu")


def listed(places: Places) -> list[int]:
    """Return the indices that a plan names."""
    if isinstance(places, slice):
        return list(range(places.start, places.stop))
    return cast(list[int], places.tolist())


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

    def run(
        self, *, out: torch.Tensor | None = None, plan: AttentionPlan | None = None
    ) -> torch.Tensor:
        if plan is None:
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
