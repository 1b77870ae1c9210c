"""Paged attention of decoding rows over a list of work items, in Triton.

A fixed number of programs works off (item, KV head) pairs; how many there are stands on the
device, so one CUDA graph serves many plans. Each pair reads a bounded range of one row's keys and
values once, for all query heads that share the KV head. A row whose keys lie in one item gets its
output directly; otherwise partial results meet in fp32, in a second kernel (`gpu.decode_merge`),
which graphs for plans without such rows leave out. Keys that several rows share come first, in a
kernel of their own (`gpu.shared_attention`), which graphs for plans without sharing leave out.

Knows tensors. Launch parameters are `gpu.decode_tuning`'s; how items are cut is
`kernels.decode_plan`'s; graphs and sequences are the engine's. What a row computes depends on its
own length, on split_tokens, on the launch parameters and on how its shared keys were cut, never on
its neighbours or on how many steps a plan was made for.

Sources: Flash-Decoding (Dao et al., 2023) for splitting keys; FlashAttention-2 (Dao, 2023) for the
online softmax in base 2; FlashInfer (Ye et al., 2025) for planning on the host.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
import triton

from nanobatch.kernels.gpu.decode_buffers import DecodeBuffers
from nanobatch.kernels.gpu.decode_kernel import decode_kernel
from nanobatch.kernels.gpu.decode_merge import merge_rows
from nanobatch.kernels.gpu.decode_tuning import (
    DecodeTuning,
    Schedule,
    fitting_stages,
    tuning_for,
)
from nanobatch.kernels.gpu.dependent_launch import early_start
from nanobatch.kernels.gpu.shared_attention import SHARED_TUNING, SharedTuning, attend_to_shared
from nanobatch.kernels.shared_items import MAX_SHARED_PARTIALS

PROGRAMS_WITHOUT_GPU = 3
"""Programs in Triton's interpreter, which runs them one after the other."""

KEY_BYTES_OF_WARPS = 256
"""Bytes of a key, 128 elements of half precision, for which launch parameters give the warps."""

OTHER_SHARED_BYTES = 6 << 10
"""Of a program's shared memory, beside tiles and queries: weights, block ids, exchanges."""

SHARED_BYTES_WITHOUT_GPU = 227 << 10
"""For Triton's interpreter, which has no limit: that of an H200."""

MIN_DOT_ROWS = 16
"""Fewest rows of a tensor core product: smaller groups of query heads are padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """The rows of one decode step, on the device.

    Attributes:
        seq_lens: [num_rows] int32, keys of each row, this step's included; 0 if inactive. At
            most the length that the plan was made for.
        block_ids: [any] int32, block tables, one after the other.
        block_starts: [num_rows or more] int32, where each row's table begins in block_ids.
    """

    seq_lens: torch.Tensor
    block_ids: torch.Tensor
    block_starts: torch.Tensor


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    rows: DecodeRows,
    buffers: DecodeBuffers,
    scale: float,
    window: int | None = None,
    has_splits: bool = True,
    has_shared: bool = False,
    tuning: DecodeTuning | None = None,
    shared_tuning: SharedTuning = SHARED_TUNING,
) -> torch.Tensor:
    """Attend with one query per row to all keys of that row.

    Nothing waits for the device; everything that changes from step to step is read from it.

    Args:
        query: [num_rows, num_heads, head_dim], last dimension contiguous.
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim], last dimension contiguous.
        value_cache: Likewise, with the same strides.
        rows: Lengths and block tables.
        buffers: Holds the plan; written where rows have partial results.
        scale: Multiplies the scores before softmax.
        window: Keys that a query sees, itself included; None sees all.
        has_splits: Whether rows of the plan may have more than one item. False saves time where
            the plan's `has_splits` is False; its results are the same.
        has_shared: Whether rows of the plan may share keys. False saves time where none does.
        tuning: Launch parameters; None takes those of the bucket's size.
        shared_tuning: Likewise, of the kernel for shared keys.

    Returns:
        [num_rows, num_heads, head_dim], contiguous. Rows that the plan has, and which are
        inactive, get zeros; rows that the plan does not have are not written.

    Raises:
        ValueError: Strides that the kernel does not take, items shorter than a tile can be, or
            shared keys where a window may hide them.
    """
    num_rows, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    _check_strides(query, key_cache, value_cache)
    out = torch.empty((num_rows, num_heads, head_dim), dtype=query.dtype, device=query.device)
    group = num_heads // num_kv_heads
    has_splits = has_splits and buffers.layout.max_partials > 0
    if tuning is None:
        tuning = tuning_for(buffers.layout.max_rows * num_kv_heads, has_shared=has_shared)
    token_bytes = triton.next_power_of_2(head_dim) * key_cache.element_size()
    tile_tokens = _tile_tokens(
        buffers.layout.split_tokens, tile_bytes=tuning.tile_bytes, token_bytes=token_bytes
    )
    group_rows = max(MIN_DOT_ROWS, triton.next_power_of_2(group))
    if has_shared:
        if window is not None:
            raise ValueError("rows of layers with a sliding window cannot share keys")
        attend_to_shared(
            query,
            key_cache,
            value_cache,
            block_ids=rows.block_ids,
            block_starts=rows.block_starts,
            buffers=buffers,
            scale=scale,
            tuning=shared_tuning,
        )
    item_rows, item_first_tokens, item_partials = buffers.item_words
    # As much of a key per warp: registers are what programs share an SM by.
    key_width = max(token_bytes // KEY_BYTES_OF_WARPS, 1)
    num_programs = _num_programs(buffers, num_kv_heads, -(-tuning.programs_per_sm // key_width))
    decode_kernel[(num_programs,)](
        query,
        key_cache,
        value_cache,
        out,
        rows.seq_lens,
        rows.block_ids,
        rows.block_starts,
        buffers.plan_words,
        item_rows,
        item_first_tokens,
        item_partials,
        buffers.partial_sums,
        buffers.partial_maxima,
        buffers.partial_totals,
        *buffers.shared_row_words,
        buffers.shared_sums,
        buffers.shared_maxima,
        buffers.shared_totals,
        buffers.queue,
        scale / math.log(2),
        buffers.layout.split_tokens,
        window or 0,
        *query.stride()[:2],
        *key_cache.stride()[:3],
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        NUM_DIMS=triton.next_power_of_2(head_dim),
        GROUP_ROWS=group_rows,
        BLOCK_SIZE=block_size,
        TILE=tile_tokens,
        HAS_WINDOW=window is not None,
        IS_LARGE_POOL=len(key_cache) * key_cache.stride(0) >= 1 << 31,
        HAS_SPLITS=has_splits,
        HAS_SHARED=has_shared,
        MAX_SHARED_PARTIALS=MAX_SHARED_PARTIALS,
        IS_QUEUE=tuning.schedule is Schedule.QUEUE,
        num_warps=tuning.num_warps * key_width,
        num_stages=fitting_stages(
            tuning.num_stages,
            tile_bytes=tile_tokens * token_bytes,
            most_bytes=_shared_memory_bytes(query.device)
            - OTHER_SHARED_BYTES
            - group_rows * token_bytes,
        ),
        maxnreg=tuning.max_registers,
        **early_start(query.device),
    )
    if has_splits:
        merge_rows(
            out,
            num_kv_heads=num_kv_heads,
            seq_lens=rows.seq_lens,
            buffers=buffers,
            window=window,
            has_shared=has_shared,
        )
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedDecodeAttention:
    """Decode attention as a layer asks for it (a `StepAttention`).

    Attributes:
        rows: The step's rows.
        buffers: The plan and room for partial results; layers use it one after the other.
        window: Keys that a query sees, or None.
        has_splits: Whether rows of the plan may have more than one item.
        has_shared: Whether they may share keys; not in layers with a window.
        tuning: Launch parameters; None takes those of the bucket's size.
        shared_tuning: Likewise, of the kernel for shared keys.
    """

    rows: DecodeRows
    buffers: DecodeBuffers
    window: int | None = None
    has_splits: bool = True
    has_shared: bool = False
    tuning: DecodeTuning | None = None
    shared_tuning: SharedTuning = SHARED_TUNING

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Attend to the pool, which holds this step's key and value too."""
        del key, value
        return decode_attention(
            query,
            key_cache,
            value_cache,
            rows=self.rows,
            buffers=self.buffers,
            scale=scale,
            window=self.window,
            has_splits=self.has_splits,
            has_shared=self.has_shared,
            tuning=self.tuning,
            shared_tuning=self.shared_tuning,
        )


def _num_programs(buffers: DecodeBuffers, num_kv_heads: int, programs_per_sm: int) -> int:
    """Return the size of the grid: fixed for a bucket, whatever its plan."""
    device = buffers.plan_words.device
    most = buffers.layout.max_items * num_kv_heads
    if device.type != "cuda":
        return min(most, PROGRAMS_WITHOUT_GPU)
    num_sms: int = torch.cuda.get_device_properties(device).multi_processor_count
    return min(most, num_sms * programs_per_sm)


@cache
def _shared_memory_bytes(device: torch.device) -> int:
    """Return the shared memory that a program may have; without a GPU no less than an H200's."""
    if device.type != "cuda":
        return SHARED_BYTES_WITHOUT_GPU
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = triton.runtime.driver.active.utils.get_device_properties(index)
    return int(properties["max_shared_mem"])


def _tile_tokens(split_tokens: int, *, tile_bytes: int, token_bytes: int) -> int:
    """Return the tokens of a tile: a power of two, no longer than an item."""
    if split_tokens < MIN_DOT_ROWS:
        raise ValueError(f"split_tokens must be at least {MIN_DOT_ROWS}, got {split_tokens}")
    return min(max(MIN_DOT_ROWS, tile_bytes // token_bytes), split_tokens)


def _check_strides(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Refuse layouts that would be read wrongly."""
    if query.stride(-1) != 1 or keys.stride(-1) != 1:
        raise ValueError("the last dimension of queries and of the KV pool must be contiguous")
    if keys.stride() != values.stride():
        raise ValueError(
            f"key and value pools must have the same strides, "
            f"got {keys.stride()} and {values.stride()}"
        )
