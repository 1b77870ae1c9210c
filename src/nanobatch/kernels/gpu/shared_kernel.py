"""The Triton kernel of shared attention: one range of keys for the queries of many decode rows.

Launched by `gpu.shared_attention`, which documents its arguments. A program works off units, a
shared item (`kernels.shared_items`) and a KV head each: the query heads that share the KV head, of
all rows of the item, are the rows of one tensor core product with the item's keys. Every row sees
every key, so only what is left over of a range after whole tiles is masked.

What comes out is not an output but a partial result of every row, in fp32; `gpu.decode_kernel`
goes on from there (`resume_from_shared`).

Sources: Hydragen (Juravsky et al., 2024, section 3.2) for one product of all sharers' queries;
FlashAttention-2 (Dao, 2023) for the online softmax in base 2.
"""

import triton
import triton.language as tl

from nanobatch.kernels.gpu.dependent_launch import wait_for_inputs


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


@triton.jit
def _attend_to_tile(
    query,
    maximum,
    total,
    weighted,
    key_ptr,
    value_ptr,
    table_ptr,
    start,
    end,
    scale_log2,
    block_stride,
    token_stride,
    HEAD_DIM: tl.constexpr,
    NUM_DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_LARGE_POOL: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """Add the tokens from start on, TILE_KEYS of them or, if not IS_WHOLE, those before end.

    Returns:
        The new maximum, total and weighted.
    """
    dims = tl.arange(0, NUM_DIMS)
    tokens = start + tl.arange(0, TILE_KEYS)
    if TILE_KEYS % BLOCK_SIZE == 0:  # the same in every tile: fewer registers
        in_block = tl.arange(0, TILE_KEYS) % BLOCK_SIZE * token_stride
    else:
        in_block = tokens % BLOCK_SIZE * token_stride
    if IS_WHOLE:
        blocks = tl.load(table_ptr + tokens // BLOCK_SIZE)
    else:
        blocks = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=tokens < end, other=0)
    if IS_LARGE_POOL:
        blocks = blocks.to(tl.int64)
    offsets = (blocks * block_stride + in_block)[:, None] + dims[None, :]
    # Values are masked too: another sequence's NaN would survive a weight of zero.
    if IS_WHOLE and HEAD_DIM == NUM_DIMS:
        keys = tl.load(key_ptr + offsets)
    else:
        mask = (dims < HEAD_DIM)[None, :] if IS_WHOLE else (tokens < end)[:, None]
        if not IS_WHOLE and HEAD_DIM != NUM_DIMS:
            mask = mask & (dims < HEAD_DIM)[None, :]
        keys = tl.load(key_ptr + offsets, mask=mask, other=0.0)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    if not IS_WHOLE:
        scores = tl.where((tokens < end)[None, :], scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, 1) * scale_log2)
    rescale = tl.exp2(maximum - new_maximum)
    weights = tl.exp2(scores * scale_log2 - new_maximum[:, None])
    total = total * rescale + tl.sum(weights, 1)
    if IS_WHOLE and HEAD_DIM == NUM_DIMS:
        values = tl.load(value_ptr + offsets)
    else:
        values = tl.load(value_ptr + offsets, mask=mask, other=0.0)
    weighted = weighted * rescale[:, None]
    weighted = tl.dot(weights.to(values.dtype), values, weighted, input_precision="ieee")
    return new_maximum, total, weighted


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

        if TILE_KEYS % BLOCK_SIZE == 0:
            # Changes nothing: the compiler makes better code of tiles that it knows to be aligned.
            first_token -= first_token % BLOCK_SIZE
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
        maximum = tl.full([TILE_QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([TILE_QUERIES], tl.float32)
        weighted = tl.zeros([TILE_QUERIES, NUM_DIMS], tl.float32)
        end_of_whole = end_token - (end_token - first_token) % TILE_KEYS
        for start in range(first_token, end_of_whole, TILE_KEYS):
            maximum, total, weighted = _attend_to_tile(
                query,
                maximum,
                total,
                weighted,
                key_ptr + kv_head * kv_head_stride,
                value_ptr + kv_head * kv_head_stride,
                block_ids_ptr + table_start,
                start,
                end_token,
                scale_log2,
                block_stride,
                token_stride,
                HEAD_DIM,
                NUM_DIMS,
                BLOCK_SIZE,
                TILE_KEYS,
                IS_LARGE_POOL,
                IS_WHOLE=True,
            )
        if end_of_whole < end_token:
            maximum, total, weighted = _attend_to_tile(
                query,
                maximum,
                total,
                weighted,
                key_ptr + kv_head * kv_head_stride,
                value_ptr + kv_head * kv_head_stride,
                block_ids_ptr + table_start,
                end_of_whole,
                end_token,
                scale_log2,
                block_stride,
                token_stride,
                HEAD_DIM,
                NUM_DIMS,
                BLOCK_SIZE,
                TILE_KEYS,
                IS_LARGE_POOL,
                IS_WHOLE=False,
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


@triton.jit
def resume_from_shared(
    shared_sums_ptr,
    shared_maxima_ptr,
    shared_totals_ptr,
    row,
    query_heads,
    is_used,
    num_partials,
    NUM_HEADS: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_DIMS: tl.constexpr,
    MAX_PARTIALS: tl.constexpr,
):
    """Merge a row's partial results of one KV head in order, as one would go through its keys.

    With none of them it returns what every online softmax begins with. `query_heads` [GROUP_ROWS]
    has padding behind the heads of the group, `is_used` [GROUP_ROWS, NUM_DIMS] says what is none.

    Returns:
        The start of the online softmax: sums [GROUP_ROWS, NUM_DIMS], maxima and totals.
    """
    dims = tl.arange(0, NUM_DIMS)
    is_head = tl.max(is_used.to(tl.int32), 1) > 0
    maximum = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    weighted = tl.zeros([GROUP_ROWS, NUM_DIMS], tl.float32)
    for part in tl.range(0, num_partials, num_stages=1):
        places = (row * MAX_PARTIALS + part).to(tl.int64) * NUM_HEADS + query_heads
        # Padding takes 0: finite, and never stored.
        part_maximum = tl.load(shared_maxima_ptr + places, mask=is_head, other=0.0)
        part_total = tl.load(shared_totals_ptr + places, mask=is_head, other=0.0)
        sums = shared_sums_ptr + places[:, None] * HEAD_DIM + dims[None, :]
        part_weighted = tl.load(sums, mask=is_used, other=0.0)
        new_maximum = tl.maximum(maximum, part_maximum)
        rescale = tl.exp2(maximum - new_maximum)
        weight = tl.exp2(part_maximum - new_maximum)
        total = total * rescale + part_total * weight
        weighted = weighted * rescale[:, None] + part_weighted * weight[:, None]
        maximum = new_maximum
    return weighted, maximum, total
