"""Attention of many decode rows to keys that they share, in Triton.

A fixed number of programs works off the (item, KV head) units of `kernels.shared_items`; how many
items there are stands on the device, so one CUDA graph serves many plans. Each unit reads its keys
and values once for all its rows. The results are partial ones, in fp32, which decode attention
takes up where it begins with what a row has to itself.

A row's result depends on how its shared keys were cut into items, and on the launch parameters,
not on which other rows an item has.
"""

import math
from dataclasses import dataclass

import torch
import triton

from nanobatch.kernels.gpu.decode_buffers import DecodeBuffers
from nanobatch.kernels.gpu.dependent_launch import early_start
from nanobatch.kernels.gpu.shared_kernel import shared_kernel
from nanobatch.kernels.shared_items import MAX_SHARED_PARTIALS

PROGRAMS_WITHOUT_GPU = 3
"""Programs in Triton's interpreter, which runs them one after the other."""

MIN_TILE = 16
"""Fewest queries, and fewest keys, of a tensor core product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTuning:
    """Launch parameters. All but programs_per_sm and num_stages decide the order of sums.

    Attributes:
        tile_queries: Queries of an item, a power of two; `max_item_rows` says how many rows.
        tile_bytes: Size of the tile of keys of one loop iteration; values take as much again.
        num_warps: Warps per program. With 64 queries or more, 4 warps compute 64 of them.
        num_stages: Depth of the software pipeline over tiles; block ids are one stage ahead.
        max_registers: Most registers per thread, or None.
        programs_per_sm: Programs launched per SM.
    """

    tile_queries: int = 64
    tile_bytes: int = 16384
    num_warps: int = 4
    num_stages: int = 5
    max_registers: int | None = None
    programs_per_sm: int = 2


SHARED_TUNING = SharedTuning()
"""Of every bucket: each other one would have to be compiled at every start. µs a layer on an H200,
8 KV heads of 128 bfloat16, 16 and 32 query heads; 1,000 rows, at last in groups of 4 with three
levels:

    tile, warps, stages, programs    1,000 x 2,048    25 groups x 1,024    250 groups x 1,800
    128       8       5         1      44, 88            51, 101              214, 260
     64       4       5         2      48, 92            53,  77              152, 182
     64       4       3         2      48, 96            59,  85              158, 192
    128       8       3         1      58, 109           70, 122              249, 298
"""


def max_item_rows(group: int) -> int:
    """Return how many rows a shared item may have, at least 1.

    Args:
        group: Query heads that share a KV head.
    """
    return max(SHARED_TUNING.tile_queries // group, 1)


def attend_to_shared(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    block_ids: torch.Tensor,
    block_starts: torch.Tensor,
    buffers: DecodeBuffers,
    scale: float,
    tuning: SharedTuning = SHARED_TUNING,
) -> None:
    """Compute the partial results of all shared items of a plan.

    Nothing waits for the device; everything that changes from step to step is read from it.

    Args:
        query: [num_rows, num_heads, head_dim], last dimension contiguous.
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim], last dimension contiguous.
        value_cache: Likewise, with the same strides.
        block_ids: [any] int32, block tables, one after the other.
        block_starts: [num_rows or more] int32, where each row's table begins in block_ids.
        buffers: Holds the plan; its shared results are written.
        scale: Multiplies the scores before softmax, above 0.
        tuning: Launch parameters. Its tile must hold the rows of every item.
    """
    num_heads, head_dim = query.shape[1:]
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    shared_kernel[(_num_programs(buffers, num_kv_heads, tuning),)](
        query,
        key_cache,
        value_cache,
        block_ids,
        block_starts,
        *buffers.shared_item_words,
        buffers.shared_sums,
        buffers.shared_maxima,
        buffers.shared_totals,
        scale / math.log(2),
        *query.stride()[:2],
        *key_cache.stride()[:3],
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        NUM_DIMS=triton.next_power_of_2(head_dim),
        MAX_PARTIALS=MAX_SHARED_PARTIALS,
        BLOCK_SIZE=block_size,
        TILE_QUERIES=max(tuning.tile_queries, triton.next_power_of_2(group)),
        TILE_KEYS=_tile_keys(key_cache, tuning.tile_bytes),
        IS_LARGE_POOL=len(key_cache) * key_cache.stride(0) >= 1 << 31,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
        maxnreg=tuning.max_registers,
        **early_start(query.device),
    )


def _num_programs(buffers: DecodeBuffers, num_kv_heads: int, tuning: SharedTuning) -> int:
    """Return the size of the grid: fixed for a bucket, whatever its plan."""
    device = buffers.plan_words.device
    most = max(buffers.layout.max_shared_items * num_kv_heads, 1)
    if device.type != "cuda":
        return min(most, PROGRAMS_WITHOUT_GPU)
    num_sms: int = torch.cuda.get_device_properties(device).multi_processor_count
    return min(most, num_sms * tuning.programs_per_sm)


def _tile_keys(key_cache: torch.Tensor, tile_bytes: int) -> int:
    """Return the keys of a tile, a power of two."""
    token_bytes = triton.next_power_of_2(key_cache.shape[-1]) * key_cache.element_size()
    return max(MIN_TILE, tile_bytes // token_bytes)
