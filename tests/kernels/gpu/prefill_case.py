"""Steps of prompt chunks with random contents, and what attention over them must give."""

from dataclasses import dataclass

import numpy as np
import torch

from nanobatch.kernels.prefill_plan import PrefillChunks

SCALE = 0.3


@dataclass(frozen=True, kw_only=True)
class PrefillCase:
    """(cached keys, new tokens) of each sequence, and the sizes around them.

    `shared_blocks` says how many leading blocks a sequence has in common with the one before.
    """

    lens: tuple[tuple[int, int], ...]
    shared_blocks: tuple[int, ...] = ()
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    window: int | None = None
    dtype: torch.dtype = torch.float32


class PrefillInputs:
    """What a layer hands over in a step; the pool is NaN wherever no sequence has a key."""

    def __init__(self, case: PrefillCase, device: torch.device, *, seed: int = 0) -> None:
        self.case = case
        rng = torch.Generator().manual_seed(seed)
        heads, kv_heads, head_dim = case.num_heads, case.num_kv_heads, case.head_dim
        new = [new for _, new in case.lens]
        num_tokens = sum(new)
        # [num_tokens, heads and twice kv_heads, head_dim]: heads of one token are neighbours
        qkv = torch.randn(num_tokens, heads + 2 * kv_heads, head_dim, generator=rng)
        qkv = qkv.to(device, case.dtype)
        self.query, self.key = qkv[:, :heads], qkv[:, heads:-kv_heads]
        self.value = qkv[:, -kv_heads:]
        self.chunks = self._chunks(rng)
        num_blocks = len(self.chunks.block_ids) + 3
        pool_shape = (num_blocks, case.block_size, kv_heads, head_dim)
        self.key_cache = torch.full(pool_shape, torch.nan, dtype=case.dtype, device=device)
        self.value_cache = torch.full_like(self.key_cache, torch.nan)
        self.keys, self.values = self._fill_pool(rng)

    def expected(self) -> torch.Tensor:
        """Compute attention in float64: [num_tokens, num_heads, head_dim]."""
        rows = []
        group_size = self.case.num_heads // self.case.num_kv_heads
        start = 0
        for (cached, new), keys, values in zip(self.case.lens, self.keys, self.values, strict=True):
            query = self.query[start : start + new].double()
            key = keys.double().repeat_interleave(group_size, dim=1)  # [seq_len, num_heads, d]
            value = values.double().repeat_interleave(group_size, dim=1)
            distance = (
                torch.arange(cached, cached + new)[:, None] - torch.arange(cached + new)[None]
            ).to(query.device)
            is_seen = distance >= 0
            if self.case.window is not None:
                is_seen &= distance < self.case.window
            scores = torch.einsum("qhd,khd->hqk", query, key) * SCALE
            weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
            rows.append(torch.einsum("hqk,khd->qhd", weights, value))
            start += new
        return torch.cat(rows)

    def _chunks(self, rng: torch.Generator) -> PrefillChunks:
        seq_lens = [cached + new for cached, new in self.case.lens]
        num_blocks = [-(-seq_len // self.case.block_size) for seq_len in seq_lens]
        block_ids = (torch.randperm(sum(num_blocks), generator=rng) + 2).numpy().astype(np.int32)
        starts = np.cumsum([0, *num_blocks[:-1]], dtype=np.int32)
        for row, shared in enumerate(self.case.shared_blocks):
            if shared:
                start, before = starts[row], starts[row - 1]
                block_ids[start : start + shared] = block_ids[before : before + shared]
        return PrefillChunks(
            query_start_loc=np.cumsum([0, *(new for _, new in self.case.lens)], dtype=np.int32),
            seq_lens=np.array(seq_lens, dtype=np.int32),
            block_ids=block_ids,
            table_starts=starts,
        )

    def _fill_pool(self, rng: torch.Generator) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Store every sequence's keys and values; return them in order."""
        all_keys: list[torch.Tensor] = []
        all_values: list[torch.Tensor] = []
        for row, (cached, new) in enumerate(self.case.lens):
            old_shape = (2, cached, self.case.num_kv_heads, self.case.head_dim)
            old = torch.randn(old_shape, generator=rng).to(self.key)
            if self.case.shared_blocks and self.case.shared_blocks[row]:
                num_shared = self.case.shared_blocks[row] * self.case.block_size
                old[0, :num_shared] = all_keys[-1][:num_shared]
                old[1, :num_shared] = all_values[-1][:num_shared]
            first, end = self.chunks.query_start_loc[row], self.chunks.query_start_loc[row + 1]
            keys = torch.cat((old[0], self.key[first:end]))
            values = torch.cat((old[1], self.value[first:end]))
            table = self.chunks.block_ids[self.chunks.table_starts[row] :]
            positions = np.arange(cached + new)
            slots = table[positions // self.case.block_size].astype(np.int64)
            slots = slots * self.case.block_size + positions % self.case.block_size
            index = torch.from_numpy(slots).to(self.key.device)
            self.key_cache.flatten(0, 1)[index] = keys
            self.value_cache.flatten(0, 1)[index] = values
            all_keys.append(keys)
            all_values.append(values)
        return all_keys, all_values
