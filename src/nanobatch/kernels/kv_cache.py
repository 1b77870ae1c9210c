"""The paged store of keys and values, and how a step's new ones get into it.

A *slot* is the place of one token: block_id * block_size + offset in the block. Which block
belongs to whom is the block manager's business; nothing here knows sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """What one layer keeps per token.

    Attributes:
        num_kv_heads: Key and value heads that this rank holds.
        head_dim: Dimensions per head.
        dtype: Data type of stored keys and values.
        window: Attention window in tokens; None attends to everything.
    """

    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's key and value."""
        return 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """Keys and values of every layer in blocks.

    The content of a slot that no sequence owns is undefined, NaN included.

    Attributes:
        block_size: Tokens per block.
        keys: Per layer [num_blocks, block_size, num_kv_heads, head_dim].
        values: Per layer [num_blocks, block_size, num_kv_heads, head_dim].
    """

    block_size: int
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @classmethod
    def allocate(
        cls,
        specs: Sequence[KVCacheSpec],
        *,
        num_blocks: int,
        block_size: int,
        device: torch.device,
    ) -> "KVCache":
        """Reserve memory for `num_blocks` blocks in every layer, without initialising it."""

        def pool(spec: KVCacheSpec) -> torch.Tensor:
            shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
            return torch.empty(shape, dtype=spec.dtype, device=device)

        return cls(
            block_size=block_size,
            keys=tuple(pool(spec) for spec in specs),
            values=tuple(pool(spec) for spec in specs),
        )

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.keys[0].shape[0]


def store_keys_values(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    slot_mapping: torch.Tensor,
) -> None:
    """Write a step's keys and values into one layer's pool, in place.

    Args:
        key: [num_tokens, num_kv_heads, head_dim].
        value: [num_tokens, num_kv_heads, head_dim].
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        value_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        slot_mapping: [num_tokens] int64, each slot at most once.
    """
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key.to(key_cache.dtype))
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value.to(value_cache.dtype))


def copy_slots(
    key_cache: torch.Tensor, value_cache: torch.Tensor, *, slot_copies: torch.Tensor
) -> None:
    """Copy keys and values from some slots of one layer's pool to others, in place.

    Args:
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        value_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        slot_copies: [2, num_copies] int64: sources, and destinations, of which none is a source
            or there twice.
    """
    sources, destinations = slot_copies
    for cache in (key_cache, value_cache):
        pool = cache.flatten(0, 1)
        pool.index_copy_(0, destinations, pool.index_select(0, sources))
