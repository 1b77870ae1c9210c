"""The Triton kernel of shared attention: one range of keys for the queries of many decode rows.

Launched by `gpu.shared_attention`, which documents its arguments. A program works off units, a
shared item (`kernels.shared_items`) and a KV head each: the query heads that share the KV head, of
all rows of the item, are the rows of one tensor core product with the item's keys. Every row sees
every key of the item (`gpu.shared_range`).

What comes out is not an output but a partial result of every row, in fp32; `gpu.decode_kernel`
goes on from there.

Source: Hydragen (Juravsky et al., 2024, section 3.2) for one product of all sharers' queries.
"""

import triton
import triton.language as tl

from nanobatch.kernels.gpu.dependent_launch import wait_for_inputs
from nanobatch.kernels.gpu.shared_range import attend_to_shared_range


@triton.jit
def _load_unit(
    unit,
    num_units,
    item_first_rows_ptr,
    item_num_rows_ptr,
    item_first_tokens_ptr,
    item_end_tokens_ptr,
    item_partials_ptr,
    NUM_KV_HEADS: tl.constexpr,
):
    """Read a unit's item; zeros past the end of the list."""
    item = unit // NUM_KV_HEADS
    exists = unit < num_units
    first_row = tl.load(item_first_rows_ptr + item, mask=exists, other=0)
    num_rows = tl.load(item_num_rows_ptr + item, mask=exists, other=0)
    first_token = tl.load(item_first_tokens_ptr + item, mask=exists, other=0)
    end_token = tl.load(item_end_tokens_ptr + item, mask=exists, other=0)
    partial = tl.load(item_partials_ptr + item, mask=exists, other=0)
    return first_row, num_rows, first_token, end_token, partial


@triton.jit(
    do_not_specialize_on_alignment=["block_ids_ptr", "block_starts_ptr"],
)
def shared_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    block_ids_ptr,
    block_starts_ptr,
    num_items_ptr,
    item_first_rows_ptr,
    item_num_rows_ptr,
    item_first_tokens_ptr,
    item_end_tokens_ptr,
    item_partials_ptr,
    shared_sums_ptr,
    shared_maxima_ptr,
    shared_totals_ptr,
    scale_log2,
    query_row_stride,
    query_head_stride,
    block_stride,
    token_stride,
    kv_head_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_DIMS: tl.constexpr,
    MAX_PARTIALS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_LARGE_POOL: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    """Work off units until none is left. The KV heads of an item are neighbours in the list.

    What the next unit needs is loaded while the current one is computed.
    """
    num_programs = tl.num_programs(0)
    unit = tl.program_id(0)
    queries = tl.arange(0, TILE_QUERIES)
    dims = tl.arange(0, NUM_DIMS)

    num_units = tl.load(num_items_ptr) * NUM_KV_HEADS
    first_row, num_rows, first_token, end_token, partial = _load_unit(
        unit,
        num_units,
        item_first_rows_ptr,
        item_num_rows_ptr,
        item_first_tokens_ptr,
        item_end_tokens_ptr,
        item_partials_ptr,
        NUM_KV_HEADS,
    )
    table_start = tl.load(block_starts_ptr + first_row)
    wait_for_inputs(STARTS_EARLY)
    while unit < num_units:
        next_unit = unit + num_programs
        next_first_row, next_num_rows, next_first_token, next_end_token, next_partial = _load_unit(
            next_unit,
            num_units,
            item_first_rows_ptr,
            item_num_rows_ptr,
            item_first_tokens_ptr,
            item_end_tokens_ptr,
            item_partials_ptr,
            NUM_KV_HEADS,
        )

        kv_head = unit % NUM_KV_HEADS
        rows = first_row + queries // GROUP
        heads = kv_head * GROUP + queries % GROUP
        exists = queries < num_rows * GROUP
        is_used = exists[:, None] & (dims < HEAD_DIM)[None, :]
        query = tl.load(
            query_ptr
            + (rows * query_row_stride + heads * query_head_stride)[:, None]
            + dims[None, :],
            mask=is_used,
            other=0.0,
        )
        maximum, total, weighted = attend_to_shared_range(
            query,
            key_ptr + kv_head * kv_head_stride,
            value_ptr + kv_head * kv_head_stride,
            block_ids_ptr + table_start,
            first_token,
            end_token,
            scale_log2,
            block_stride,
            token_stride,
            TILE_QUERIES,
            HEAD_DIM,
            NUM_DIMS,
            BLOCK_SIZE,
            TILE_KEYS,
            IS_LARGE_POOL,
        )
        # Under way while the result is stored.
        next_table_start = tl.load(block_starts_ptr + next_first_row)

        places = (rows * MAX_PARTIALS + partial).to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads
        tl.store(shared_maxima_ptr + places, maximum, mask=exists)
        tl.store(shared_totals_ptr + places, total, mask=exists)
        sums = shared_sums_ptr + places[:, None] * HEAD_DIM + dims[None, :]
        tl.store(sums, weighted, mask=is_used)

        unit = next_unit
        first_row, num_rows = next_first_row, next_num_rows
        first_token, end_token, partial = next_first_token, next_end_token, next_partial
        table_start = next_table_start
