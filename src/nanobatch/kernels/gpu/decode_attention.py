"""Paged attention of decoding rows over a list of work items, in Triton.

A fixed number of programs works off (item, KV head) pairs; how many there are stands on the
device, so one CUDA graph serves every plan. Each pair reads a bounded range of one row's keys and
values once, for all query heads that share the KV head. A row whose keys lie in one item gets its
output directly; otherwise partial results meet in fp32 (`gpu.decode_merge`).

Chooses launch parameters and knows tensors. How items are cut is `kernels.decode_plan`'s; graphs
and sequences are the engine's. What a row computes depends on its own length, on split_tokens and
on the launch parameters, never on its neighbours or on how many steps a plan was made for.

Sources: Flash-Decoding (Dao et al., 2023) for splitting keys; FlashAttention-2 (Dao, 2023) for the
online softmax in base 2; FlashInfer (Ye et al., 2025) for planning on the host.
"""

import math
from dataclasses import dataclass
from enum import Enum

import torch
import triton

from nanobatch.kernels.gpu.decode_buffers import DecodeBuffers
from nanobatch.kernels.gpu.decode_kernel import decode_kernel
from nanobatch.kernels.gpu.decode_merge import merge_rows, merge_tile


class Schedule(Enum):
    """How programs divide the pairs, which are sorted by cost."""

    STRIDED = "strided"
    """Program p takes p, p + n, p + 2n, ... With many more programs than fit on the chip at
    once, the hardware hands them out."""
    SNAKE = "snake"
    """As STRIDED, every second round in reverse: who got the largest gets the smallest next."""
    QUEUE = "queue"
    """Each program takes the next pair from an integer counter when it is done with one."""


class Merge(Enum):
    """Who adds up the partial results of a row."""

    LAST_ARRIVAL = "last_arrival"
    """The program that finishes a row's last item, told by an integer counter."""
    SECOND_KERNEL = "second_kernel"
    """A kernel launched after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTuning:
    """Launch parameters. tile_bytes and num_warps decide the order of sums, the others nothing.

    Attributes:
        tile_bytes: Size of the tile of keys of one loop iteration; values take as much again.
        num_warps: Warps per program.
        num_stages: Depth of the software pipeline over tiles. Block ids are loaded one stage
            ahead of what they address: with 3 or 4 one tile is in flight, with 5 or 6 two.
        max_registers: Most registers per thread: with 4 warps, 128 let 4 programs share an SM,
            96 let 5. None leaves it to the compiler.
        programs_per_sm: Programs launched per SM.
        schedule: How they divide the work.
        merge: Who merges.
        keeps_in_l2: Whether keys and values may push other data out of the L2 cache.
    """

    tile_bytes: int = 16384
    num_warps: int = 4
    num_stages: int = 3
    max_registers: int | None = 128
    programs_per_sm: int = 4
    schedule: Schedule = Schedule.STRIDED
    merge: Merge = Merge.LAST_ARRIVAL
    keeps_in_l2: bool = True


DEFAULT_TUNING = DecodeTuning()
"""What is launched unless said otherwise."""

PROGRAMS_WITHOUT_GPU = 3
"""Programs in Triton's interpreter, which runs them one after the other."""

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
    tuning: DecodeTuning = DEFAULT_TUNING,
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
        tuning: Launch parameters.

    Returns:
        [num_rows, num_heads, head_dim], contiguous. Rows that the plan has, and which are
        inactive, get zeros; rows that the plan does not have are not written.

    Raises:
        ValueError: Strides that the kernel does not take, or items shorter than a tile can be.
    """
    num_rows, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    _check_strides(query, key_cache, value_cache)
    out = torch.empty((num_rows, num_heads, head_dim), dtype=query.dtype, device=query.device)
    group = num_heads // num_kv_heads
    merge_heads, merge_parts = merge_tile(group)
    has_splits = buffers.layout.max_partials > 0
    merges_in_kernel = has_splits and tuning.merge is Merge.LAST_ARRIVAL
    item_rows, item_first_tokens, item_partials = buffers.item_words
    decode_kernel[(_num_programs(buffers, num_kv_heads, tuning),)](
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
        buffers.arrivals,
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
        GROUP_ROWS=max(MIN_DOT_ROWS, triton.next_power_of_2(group)),
        BLOCK_SIZE=block_size,
        TILE=_tile_tokens(key_cache, buffers.layout.split_tokens, tuning.tile_bytes),
        MERGE_HEADS=merge_heads,
        MERGE_PARTS=merge_parts,
        HAS_WINDOW=window is not None,
        IS_LARGE_POOL=len(key_cache) * key_cache.stride(0) >= 1 << 31,
        HAS_SPLITS=has_splits,
        MERGES=merges_in_kernel,
        SCHEDULE=tuning.schedule.value,
        EVICTION="" if tuning.keeps_in_l2 else "evict_first",
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
        maxnreg=tuning.max_registers,
    )
    if has_splits and not merges_in_kernel:
        merge_rows(out, seq_lens=rows.seq_lens, buffers=buffers, window=window)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedDecodeAttention:
    """Decode attention as a layer asks for it (a `StepAttention`).

    Attributes:
        rows: The step's rows.
        buffers: The plan and room for partial results; layers use it one after the other.
        window: Keys that a query sees, or None.
        tuning: Launch parameters.
    """

    rows: DecodeRows
    buffers: DecodeBuffers
    window: int | None = None
    tuning: DecodeTuning = DEFAULT_TUNING

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
            tuning=self.tuning,
        )


def _num_programs(buffers: DecodeBuffers, num_kv_heads: int, tuning: DecodeTuning) -> int:
    """Return the size of the grid: fixed for a bucket, whatever its plan."""
    device = buffers.plan_words.device
    most = buffers.layout.max_items * num_kv_heads
    if device.type != "cuda":
        return min(most, PROGRAMS_WITHOUT_GPU)
    num_sms: int = torch.cuda.get_device_properties(device).multi_processor_count
    return min(most, num_sms * tuning.programs_per_sm)


def _tile_tokens(key_cache: torch.Tensor, split_tokens: int, tile_bytes: int) -> int:
    """Return the tokens of a tile: a power of two, no longer than an item."""
    token_bytes = triton.next_power_of_2(key_cache.shape[-1]) * key_cache.element_size()
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
