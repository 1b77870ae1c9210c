"""What the passes of prompt attention cost: the measured constants behind groups of chunks.

Rates are those of an H200 (docs/measurements.md); other GPUs differ less in how these costs
compare, which is all that is decided by them. Knows no step.
"""

import torch

from nanobatch.kernels.attention_backend import AttentionBackend
from nanobatch.kernels.gpu.prefill_tiling import PrefillTiling
from nanobatch.kernels.prefill_groups import GroupCosts

FLASH3_FLOPS_PER_S = 560e12
"""FA3 with full tiles over the pool: 587 for 1,024 new tokens on 2,048, 527 for 100 of them if
its tiles of 200 of 256 rows are counted as full."""

TRITON_FLOPS_PER_S = 300e12
"""Our kernel with full tiles: 331 and 277, counted alike."""

TRITON_FP32_FLOPS_PER_S = 30e12
"""The same in fp32, which no tensor core computes exactly."""

BYTES_PER_S = 1.9e12
"""Queries, results and logarithms of sums: the second pass takes 0.36 to 0.46 ns for the 776 bytes
of a row of 128 dimensions, its few keys included."""

STEP_S = 40e-6
"""Two launches more per layer: about 20 µs of the host each, and the ends of two grids."""


def group_costs(
    backend: AttentionBackend,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    tiling: PrefillTiling,
) -> GroupCosts:
    """Return the costs of a model's attention on a backend.

    Args:
        backend: What computes attention over the pool; FA2 leaves that to our kernel.
        num_heads: Query heads of this rank.
        num_kv_heads: KV heads of this rank.
        head_dim: Dimensions per head.
        dtype: Of queries, keys and values.
        tiling: Of our kernel.
    """
    row_key_flops = 4 * head_dim * num_kv_heads  # two products, a multiplication and addition each
    rest_flops_per_s = TRITON_FLOPS_PER_S if dtype.itemsize <= 2 else TRITON_FP32_FLOPS_PER_S
    is_flash3 = backend is AttentionBackend.FA3
    flops_per_s = FLASH3_FLOPS_PER_S if is_flash3 else rest_flops_per_s
    row_bytes = (3 * head_dim * dtype.itemsize + 2 * torch.float32.itemsize) * num_kv_heads
    return GroupCosts(
        rows_per_query=num_heads // num_kv_heads,
        tile_rows=_flash3_tile_rows(head_dim) if is_flash3 else tiling.tile_rows,
        key_s=row_key_flops / flops_per_s,
        rest_tile_rows=tiling.tile_rows,
        rest_key_s=row_key_flops / rest_flops_per_s,
        row_s=row_bytes / BYTES_PER_S,
        step_s=STEP_S,
    )


def _flash3_tile_rows(head_dim: int) -> int:
    """Return the rows of FA3's tiles on Hopper (`hopper/tile_size.h` of its sources)."""
    return 192 if head_dim <= 64 else 128
