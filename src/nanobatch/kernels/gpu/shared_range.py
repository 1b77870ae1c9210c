"""The inner loop of shared attention: a tile of queries against a range of keys, without a mask.

Tensor cores multiply weights with values while the next weights are made: the loop is one tile of
keys ahead of the values. What it does per tile is

    scores = queries x keys of this tile          waits for both products under way
    sums = sums x rescale + weights x values of the tile before          begins, and goes on during
    weights, rescale = online softmax of the scores

Triton (3.6 and 3.7) leaves the second product under way until the next first one if nothing else
in the loop touches its result, and if weights come from registers: they are carried in fp32, as a
value that is only passed on would be put into shared memory. ptxas keeps products under way only
if it knows that the loop runs at least once. On an H200 the generated code must have no
`WARPGROUP.DEPBAR` between the steps of one product.

Sources: FlashAttention-3 (Shah et al., 2024, section 3.2) for overlapping softmax and products
within a group of warps; FlashAttention-2 (Dao, 2023) for the online softmax in base 2.
"""

import triton
import triton.language as tl


@triton.jit
def _load_tile(
    pool_ptr,
    table_ptr,
    start,
    end,
    block_stride,
    token_stride,
    HEAD_DIM: tl.constexpr,
    NUM_DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_LARGE_POOL: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """Load keys or values [TILE_KEYS, NUM_DIMS] from start on; zeros from end on.

    Zeros for values too: another sequence's NaN would survive a weight of zero.
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
    places = pool_ptr + (blocks * block_stride + in_block)[:, None] + dims[None, :]
    if IS_WHOLE and HEAD_DIM == NUM_DIMS:
        return tl.load(places)
    mask = (dims < HEAD_DIM)[None, :]
    if not IS_WHOLE:
        mask &= (tokens < end)[:, None]
    return tl.load(places, mask=mask, other=0.0)


@triton.jit
def _add_weights(scores, maximum, total, scale_log2):
    """Go on with the online softmax.

    Returns:
        The new maximum and total, by what earlier sums are to be multiplied, and the weights.
    """
    new_maximum = tl.maximum(maximum, tl.max(scores, 1) * scale_log2)
    rescale = tl.exp2(maximum - new_maximum)
    weights = tl.exp2(scores * scale_log2 - new_maximum[:, None])
    return new_maximum, total * rescale + tl.sum(weights, 1), rescale, weights


@triton.jit
def _attend_to_whole_tiles(
    query,
    maximum,
    total,
    weighted,
    key_ptr,
    value_ptr,
    table_ptr,
    first,
    end,
    scale_log2,
    block_stride,
    token_stride,
    TILE_QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_LARGE_POOL: tl.constexpr,
):
    """Attend to tokens first to end, at least one tile and no part of one."""
    tl.assume(first < end)
    rescale = tl.full([TILE_QUERIES], 1.0, tl.float32)
    weights = tl.zeros([TILE_QUERIES, TILE_KEYS], tl.float32)
    for start in range(first, end, TILE_KEYS):
        keys = _load_tile(
            key_ptr,
            table_ptr,
            start,
            end,
            block_stride,
            token_stride,
            HEAD_DIM,
            NUM_DIMS,
            BLOCK_SIZE,
            TILE_KEYS,
            IS_LARGE_POOL,
            IS_WHOLE=True,
        )
        # Before the first tile: any values, for weights of 0.
        before = tl.maximum(start - TILE_KEYS, first)
        if TILE_KEYS % BLOCK_SIZE == 0:
            before -= before % BLOCK_SIZE  # changes nothing, but tells the compiler
        values = _load_tile(
            value_ptr,
            table_ptr,
            before,
            end,
            block_stride,
            token_stride,
            HEAD_DIM,
            NUM_DIMS,
            BLOCK_SIZE,
            TILE_KEYS,
            IS_LARGE_POOL,
            IS_WHOLE=True,
        )
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        weighted = weighted * rescale[:, None]
        weighted = tl.dot(weights.to(query.dtype), values, weighted, input_precision="ieee")
        maximum, total, rescale, weights = _add_weights(scores, maximum, total, scale_log2)
    values = _load_tile(
        value_ptr,
        table_ptr,
        end - TILE_KEYS,
        end,
        block_stride,
        token_stride,
        HEAD_DIM,
        NUM_DIMS,
        BLOCK_SIZE,
        TILE_KEYS,
        IS_LARGE_POOL,
        IS_WHOLE=True,
    )
    weighted = weighted * rescale[:, None]
    weighted = tl.dot(weights.to(query.dtype), values, weighted, input_precision="ieee")
    return maximum, total, weighted


@triton.jit
def _attend_to_rest(
    query,
    maximum,
    total,
    weighted,
    key_ptr,
    value_ptr,
    table_ptr,
    first,
    end,
    scale_log2,
    block_stride,
    token_stride,
    HEAD_DIM: tl.constexpr,
    NUM_DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_LARGE_POOL: tl.constexpr,
):
    """Attend to tokens first to end, at least one and less than a tile."""
    keys = _load_tile(
        key_ptr,
        table_ptr,
        first,
        end,
        block_stride,
        token_stride,
        HEAD_DIM,
        NUM_DIMS,
        BLOCK_SIZE,
        TILE_KEYS,
        IS_LARGE_POOL,
        IS_WHOLE=False,
    )
    values = _load_tile(
        value_ptr,
        table_ptr,
        first,
        end,
        block_stride,
        token_stride,
        HEAD_DIM,
        NUM_DIMS,
        BLOCK_SIZE,
        TILE_KEYS,
        IS_LARGE_POOL,
        IS_WHOLE=False,
    )
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    exists = first + tl.arange(0, TILE_KEYS) < end
    scores = tl.where(exists[None, :], scores, float("-inf"))
    maximum, total, rescale, weights = _add_weights(scores, maximum, total, scale_log2)
    weighted = weighted * rescale[:, None]
    weighted = tl.dot(weights.to(query.dtype), values, weighted, input_precision="ieee")
    return maximum, total, weighted


@triton.jit
def attend_to_shared_range(
    query,
    key_ptr,
    value_ptr,
    table_ptr,
    first,
    end,
    scale_log2,
    block_stride,
    token_stride,
    TILE_QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    IS_LARGE_POOL: tl.constexpr,
):
    """Attend with all queries [TILE_QUERIES, NUM_DIMS] to tokens first to end of one KV head.

    Tiles begin with the first token, a multiple of BLOCK_SIZE.

    Returns:
        Largest scores in base 2 [TILE_QUERIES], sums of weights relative to them, and sums of
        weighted values [TILE_QUERIES, NUM_DIMS], all fp32.
    """
    maximum = tl.full([TILE_QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([TILE_QUERIES], tl.float32)
    weighted = tl.zeros([TILE_QUERIES, NUM_DIMS], tl.float32)
    if TILE_KEYS % BLOCK_SIZE == 0:
        first -= first % BLOCK_SIZE  # changes nothing: aligned tiles make better code
    end_of_whole = end - (end - first) % TILE_KEYS
    if first < end_of_whole:
        maximum, total, weighted = _attend_to_whole_tiles(
            query,
            maximum,
            total,
            weighted,
            key_ptr,
            value_ptr,
            table_ptr,
            first,
            end_of_whole,
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
    if end_of_whole < end:
        maximum, total, weighted = _attend_to_rest(
            query,
            maximum,
            total,
            weighted,
            key_ptr,
            value_ptr,
            table_ptr,
            end_of_whole,
            end,
            scale_log2,
            block_stride,
            token_stride,
            HEAD_DIM,
            NUM_DIMS,
            BLOCK_SIZE,
            TILE_KEYS,
            IS_LARGE_POOL,
        )
    return maximum, total, weighted
