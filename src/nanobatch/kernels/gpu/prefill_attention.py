"""Causal attention of prompt chunks, in Triton: keys from the paged pool or from the step itself.

One program computes one tile of one KV head: some consecutive queries of a sequence, each with
all query heads that share the KV head (the rows of the tile). It walks the sequence's keys in
pieces that begin at absolute multiples of their size, with the online softmax of FlashAttention
(Dao et al. 2022, 2023), in fp32 and base 2. Only pieces that some row sees in part are masked.

A row's result does not depend on the other rows of its tile, nor on where the tile begins: a
piece that a row does not see changes none of its sums, and masked and unmasked pieces are
computed by the same operations.

Tiles come from `kernels.prefill_plan`; this module knows no sequences.
"""

import torch
import triton
import triton.language as tl

from nanobatch.kernels.gpu.prefill_tiling import PrefillTiling

LOG2_E = 1.4426950408889634


def paged_prefill_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    tiles: torch.Tensor,
    block_ids: torch.Tensor,
    scale: float,
    window: int | None,
    tiling: PrefillTiling,
    out: torch.Tensor,
) -> None:
    """Attend to keys in the pool.

    Args:
        query: [num_tokens, num_heads, head_dim], last dimension contiguous.
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim], last dimension contiguous.
        value_cache: [num_blocks, block_size, num_kv_heads, head_dim], likewise.
        tiles: [num_tiles, 4] int32 of `plan_tiles`; the last column is where the sequence's table
            begins in `block_ids`.
        block_ids: [n] int32.
        scale: Multiplies the scores before softmax, above 0.
        window: Keys that a query sees, itself included; None sees all before it.
        tiling: How the kernel is compiled; its tiles hold at least the queries of each tile.
        out: [num_tokens, num_heads, head_dim], contiguous; written where a tile has a query.
    """
    _launch(
        query, key_cache, value_cache, tiles, block_ids, scale, window, tiling, out,
        block_size=key_cache.shape[1],
    )  # fmt: skip


def contiguous_prefill_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    tiles: torch.Tensor,
    scale: float,
    window: int | None,
    tiling: PrefillTiling,
    out: torch.Tensor,
) -> None:
    """Attend to keys that stand one after the other, a sequence's first key first.

    Args:
        query: [num_tokens, num_heads, head_dim], last dimension contiguous.
        key: [num_keys, num_kv_heads, head_dim], last dimension contiguous.
        value: [num_keys, num_kv_heads, head_dim], likewise.
        tiles: [num_tiles, 4] int32 of `plan_tiles`; the last column is the sequence's first key.
        scale: As in `paged_prefill_attention`, like the rest.
        window: See there.
        tiling: See there.
        out: See there.
    """
    _launch(query, key[:, None], value[:, None], tiles, tiles, scale, window, tiling, out)


def _launch(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tiles: torch.Tensor,
    block_ids: torch.Tensor,
    scale: float,
    window: int | None,
    tiling: PrefillTiling,
    out: torch.Tensor,
    *,
    block_size: int | None = None,
) -> None:
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = keys.shape[2]
    assert scale > 0, "the maximum is taken before scores are scaled"
    assert out.is_contiguous() and query.stride(2) == keys.stride(3) == values.stride(3) == 1
    if len(tiles) == 0:
        return
    _prefill_kernel[(len(tiles) * num_kv_heads,)](
        query, keys, values, out, tiles, block_ids,
        scale * LOG2_E,
        query.stride(0), query.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2),
        values.stride(0), values.stride(1), values.stride(2),
        NUM_KV_HEADS=num_kv_heads,
        GROUP_SIZE=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=max(16, triton.next_power_of_2(head_dim)),
        WINDOW=window or 0,
        BLOCK_SIZE=block_size or 1,
        IS_PAGED=block_size is not None,
        TILE_ROWS=tiling.tile_rows,
        TILE_KEYS=tiling.tile_keys,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )  # fmt: skip


@triton.jit
def _prefill_kernel(
    query, keys, values, out, tiles, block_ids,
    scale,
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
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):  # fmt: skip
    # KV heads of one tile are neighbours in the grid: they read the same blocks.
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    tile = tiles + tl.program_id(0) // NUM_KV_HEADS * 4
    first_query = tl.load(tile)
    num_queries = tl.load(tile + 1)
    first_position = tl.load(tile + 2)
    source_start = tl.load(tile + 3)
    last_position = first_position + num_queries - 1

    rows = tl.arange(0, TILE_ROWS)
    dims = tl.arange(0, PADDED_DIM)
    query_index = rows // GROUP_SIZE
    heads = kv_head * GROUP_SIZE + rows % GROUP_SIZE
    positions = first_position + query_index
    tokens = (first_query + query_index).to(tl.int64)
    is_element = (query_index < num_queries)[:, None] & (dims < HEAD_DIM)[None, :]
    query_rows = tokens * query_token_stride + heads * query_head_stride
    query_tile = tl.load(query + query_rows[:, None] + dims[None, :], mask=is_element, other=0.0)

    running_max = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    running_sum = tl.zeros([TILE_ROWS], tl.float32)
    accumulator = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    head_keys = keys + kv_head * key_head_stride
    head_values = values + kv_head * value_head_stride

    # Pieces of keys in [first_key, full_start) are cut by the window, those in
    # [full_start, full_end) are seen in full by all rows, the rest is cut by causality.
    full_end = (first_position + 1) // TILE_KEYS * TILE_KEYS
    full_start = 0
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
    out_rows = (tokens * (NUM_KV_HEADS * GROUP_SIZE) + heads) * HEAD_DIM
    tl.store(
        out + out_rows[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=is_element
    )


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
