"""The Triton kernel of prompt attention: one tile of queries over pieces of keys.

One program computes one tile of one KV head: some consecutive queries, each with all query heads
that share the KV head (the rows of the tile). It walks the keys in pieces that begin at absolute
multiples of their size, with the online softmax of FlashAttention (Dao et al. 2022, 2023), in
fp32 and base 2. Only pieces that some row sees in part are masked.

A row's result does not depend on the other rows of its tile, nor on where the tile begins: a
piece that a row does not see changes none of its sums, and masked and unmasked pieces are
computed by the same operations.

Launched by `prefill_attention`; knows no sequences.
"""

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def prefill_kernel(
    query, keys, values, out, log_sums, tiles, block_ids,
    scale, num_tokens,
    query_token_stride, query_head_stride,
    key_block_stride, key_token_stride, key_head_stride,
    value_block_stride, value_token_stride, value_head_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_PAGED: tl.constexpr,
    IS_SHARED: tl.constexpr,
    CONTINUES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute one tile of one KV head; see `prefill_attention` for its arguments and shapes."""
    # KV heads of one tile are neighbours in the grid: they read the same blocks.
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    tile = tiles + tl.program_id(0) // NUM_KV_HEADS * 5
    first_query = tl.load(tile)
    num_queries = tl.load(tile + 1)
    first_position = tl.load(tile + 2)
    source_start = tl.load(tile + 3)

    rows = tl.arange(0, TILE_ROWS)
    dims = tl.arange(0, PADDED_DIM)
    query_index = rows // GROUP_SIZE
    heads = kv_head * GROUP_SIZE + rows % GROUP_SIZE
    if IS_SHARED:  # every query sees all shared keys: they stand where the last of those does
        last_position = first_position
        positions = first_position + query_index * 0
    else:
        last_position = first_position + num_queries - 1
        positions = first_position + query_index
    tokens = (first_query + query_index).to(tl.int64)
    is_element = (query_index < num_queries)[:, None] & (dims < HEAD_DIM)[None, :]
    query_rows = tokens * query_token_stride + heads * query_head_stride
    query_tile = tl.load(query + query_rows[:, None] + dims[None, :], mask=is_element, other=0.0)

    out_rows = (tokens * (NUM_KV_HEADS * GROUP_SIZE) + heads) * HEAD_DIM
    log_sum_rows = heads.to(tl.int64) * num_tokens + tokens
    full_start = 0
    if CONTINUES:
        # A finished softmax is one whose weights sum to 1 relative to the log of their sum.
        is_query = query_index < num_queries
        running_max = tl.load(log_sums + log_sum_rows, mask=is_query, other=0.0) * _LOG2_E
        running_sum = tl.full([TILE_ROWS], 1.0, tl.float32)
        accumulator = tl.load(
            out + out_rows[:, None] + dims[None, :], mask=is_element, other=0.0
        ).to(tl.float32)
        # Divided and multiplied so that the compiler knows where pieces begin.
        full_start = tl.load(tile + 4) // TILE_KEYS * TILE_KEYS
    else:
        running_max = tl.full([TILE_ROWS], float("-inf"), tl.float32)
        running_sum = tl.zeros([TILE_ROWS], tl.float32)
        accumulator = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    head_keys = keys + kv_head * key_head_stride
    head_values = values + kv_head * value_head_stride

    # Pieces of keys in [first_key, full_start) are cut by the window, those in
    # [full_start, full_end) are seen in full by all rows, the rest is cut by causality.
    full_end = (first_position + 1) // TILE_KEYS * TILE_KEYS
    if WINDOW > 0:
        first_key = tl.maximum(first_position - WINDOW + 1, 0) // TILE_KEYS * TILE_KEYS
        full_start = tl.cdiv(tl.maximum(last_position - WINDOW + 1, 0), TILE_KEYS) * TILE_KEYS
        full_end = tl.maximum(full_start, full_end)
        accumulator, running_max, running_sum = _attend_pieces(
            accumulator, running_max, running_sum, query_tile, head_keys, head_values, block_ids,
            scale, first_key, tl.minimum(full_start, last_position + 1),
            positions, last_position, source_start,
            key_block_stride, key_token_stride, value_block_stride, value_token_stride,
            HEAD_DIM, PADDED_DIM, WINDOW, BLOCK_SIZE, IS_PAGED, TILE_KEYS, IS_MASKED=True,
        )  # fmt: skip
    accumulator, running_max, running_sum = _attend_pieces(
        accumulator, running_max, running_sum, query_tile, head_keys, head_values, block_ids,
        scale, full_start, full_end,
        positions, last_position, source_start,
        key_block_stride, key_token_stride, value_block_stride, value_token_stride,
        HEAD_DIM, PADDED_DIM, WINDOW, BLOCK_SIZE, IS_PAGED, TILE_KEYS, IS_MASKED=False,
    )  # fmt: skip
    accumulator, running_max, running_sum = _attend_pieces(
        accumulator, running_max, running_sum, query_tile, head_keys, head_values, block_ids,
        scale, full_end, last_position + 1,
        positions, last_position, source_start,
        key_block_stride, key_token_stride, value_block_stride, value_token_stride,
        HEAD_DIM, PADDED_DIM, WINDOW, BLOCK_SIZE, IS_PAGED, TILE_KEYS, IS_MASKED=True,
    )  # fmt: skip

    # Rows past the last query may have seen no key at all; they are not stored.
    result = accumulator / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]
    tl.store(
        out + out_rows[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=is_element
    )
    if IS_SHARED:
        log_sum = (running_max + tl.log2(running_sum)) / _LOG2_E
        tl.store(log_sums + log_sum_rows, log_sum, mask=query_index < num_queries)


@triton.jit
def _attend_pieces(
    accumulator, running_max, running_sum, query_tile, head_keys, head_values, block_ids,
    scale, first_key, end_key,
    positions, last_position, source_start,
    key_block_stride, key_token_stride, value_block_stride, value_token_stride,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_PAGED: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_MASKED: tl.constexpr,
):  # fmt: skip
    """Add the pieces of keys that begin in [first_key, end_key) to the running softmax."""
    for piece in tl.range(first_key, end_key, TILE_KEYS):
        key_positions = piece + tl.arange(0, TILE_KEYS)
        if IS_PAGED:
            table = block_ids + source_start + key_positions // BLOCK_SIZE
            if IS_MASKED:
                blocks = tl.load(table, mask=key_positions <= last_position, other=0).to(tl.int64)
            else:
                blocks = tl.load(table).to(tl.int64)
            offsets = key_positions % BLOCK_SIZE
        else:
            blocks = (source_start + key_positions).to(tl.int64)
            offsets = key_positions * 0
        key_piece = _load_piece(
            head_keys + blocks * key_block_stride + offsets * key_token_stride,
            key_positions <= last_position, HEAD_DIM, PADDED_DIM, IS_MASKED,
        )  # fmt: skip
        scores = tl.dot(query_tile, tl.trans(key_piece), input_precision="ieee")
        if IS_MASKED:
            is_seen = key_positions[None, :] <= positions[:, None]
            if WINDOW > 0:
                is_seen &= key_positions[None, :] > positions[:, None] - WINDOW
            scores = tl.where(is_seen, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale)
        # A row that has seen no key yet keeps -inf as its maximum: -inf - -inf would be NaN.
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(tl.fma(scores, scale, -shift[:, None]))
        correction = tl.exp2(running_max - shift)
        running_sum = running_sum * correction + tl.sum(weights, 1)
        running_max = new_max
        value_piece = _load_piece(
            head_values + blocks * value_block_stride + offsets * value_token_stride,
            key_positions <= last_position, HEAD_DIM, PADDED_DIM, IS_MASKED,
        )  # fmt: skip
        accumulator = tl.dot(
            weights.to(value_piece.dtype),
            value_piece,
            accumulator * correction[:, None],
            input_precision="ieee",
        )
    return accumulator, running_max, running_sum


@triton.jit
def _load_piece(
    token_pointers, is_token,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, IS_MASKED: tl.constexpr,
):  # fmt: skip
    """Load [tokens, dims]; nothing past a sequence's end is read, it may be NaN."""
    dims = tl.arange(0, PADDED_DIM)
    pointers = token_pointers[:, None] + dims[None, :]
    if IS_MASKED and HEAD_DIM < PADDED_DIM:
        piece = tl.load(pointers, mask=is_token[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    elif IS_MASKED:
        piece = tl.load(pointers, mask=is_token[:, None], other=0.0)
    elif HEAD_DIM < PADDED_DIM:
        piece = tl.load(pointers, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    else:
        piece = tl.load(pointers)
    return piece
