"""Tile sizes of the prefill kernel, chosen for a model."""

from dataclasses import dataclass, replace

import torch
import triton


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTiling:
    """How the kernel is compiled.

    Attributes:
        tile_rows: Rows of a tile, a power of two: queries times query heads per KV head.
        tile_keys: Keys of a piece, a power of two.
        num_warps: Warps per program.
        num_stages: Depth of the software pipeline that loads keys and values.
    """

    tile_rows: int
    tile_keys: int
    num_warps: int
    num_stages: int

    @classmethod
    def for_heads(cls, *, head_dim: int, group_size: int, dtype: torch.dtype) -> "PrefillTiling":
        """Choose for a model. Never depends on the step, so that results do not either.

        Args:
            head_dim: Dimensions per head.
            group_size: Query heads per KV head.
            dtype: Of queries, keys and values.
        """
        min_rows = max(16, triton.next_power_of_2(group_size))
        if dtype.itemsize > 2:
            num_rows = max(32 if head_dim <= 128 else 16, min_rows)
            return cls(tile_rows=num_rows, tile_keys=32, num_warps=8, num_stages=2)
        if head_dim > 128:
            return cls(tile_rows=max(64, min_rows), tile_keys=32, num_warps=4, num_stages=2)
        # H200, head_dim 128, TFLOP/s of 16 x 1,024 fresh, 1,024 and 100 on 2,048 (2026-11-29):
        # 300, 344, 239; (128, 64, 8, 3) has 301, 332, 222 and (128, 128, 8, 3) 277, 362, 247.
        return cls(tile_rows=max(64, min_rows), tile_keys=64, num_warps=4, num_stages=3)

    def of_short_ranges(self) -> "PrefillTiling":
        """Return the tiling with the same rows for a few keys each, as of tails by themselves.

        H200, head_dim 128, 16 heads, µs a layer for 160 x 100, 1,000 x 16 and 800 x 20 tokens with
        their own keys: pieces of 64 keys 164, 198, 164; of 32 keys 122, 117, 100; of 16 keys 118,
        92, 96 (2026-11-30).
        """
        if self.tile_keys < 64:
            return self
        return replace(self, tile_keys=16, num_stages=2)

    def queries_per_tile(self, group_size: int) -> int:
        """Return how many queries, with `group_size` rows each, fit a tile."""
        return self.tile_rows // group_size
