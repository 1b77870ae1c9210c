"""The inner loop of paged decode attention: one row's query heads of a KV head, a range of keys.

Knows the block table, not items or plans, which are `gpu.decode_kernel`'s.
"""

import triton
import triton.language as tl


@triton.jit
def attend_to_range(
    query,
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
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    IS_LARGE_POOL: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
):
    """Attend with a group of heads [GROUP_ROWS, NUM_DIMS] to tokens first to end of one KV head.

    Tiles begin at absolute multiples of TILE; with HAS_SHARED, where the first token may be any
    multiple of BLOCK_SIZE, with it.

    Returns:
        Sums of weighted values [GROUP_ROWS, NUM_DIMS], largest scores in base 2 and sums of
        weights relative to them [GROUP_ROWS], all fp32.
    """
    dims = tl.arange(0, NUM_DIMS)
    maximum = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    weighted = tl.zeros([GROUP_ROWS, NUM_DIMS], tl.float32)
    # The compiler makes better code of tiles that it knows to be aligned.
    if HAS_WINDOW or not HAS_SHARED:
        begin = first - first % TILE
    elif TILE % BLOCK_SIZE == 0:
        begin = first - first % BLOCK_SIZE
    else:
        begin = first
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        if TILE % BLOCK_SIZE == 0:  # the same in every tile: fewer registers
            in_block = tl.arange(0, TILE) % BLOCK_SIZE * token_stride
        else:
            in_block = tokens % BLOCK_SIZE * token_stride
        visible = tokens < end
        if HAS_WINDOW:
            visible &= tokens >= first
        blocks = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=visible, other=0)
        if IS_LARGE_POOL:
            blocks = blocks.to(tl.int64)
        offsets = blocks * block_stride + in_block
        # Values are masked too: another row's NaN would survive a weight of zero.
        mask = visible[:, None]
        if HEAD_DIM != NUM_DIMS:
            mask = mask & (dims < HEAD_DIM)[None, :]
        keys = tl.load(
            key_ptr + offsets[:, None] + dims[None, :],
            mask=mask,
            other=0.0,
        )
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale_log2
        scores = tl.where(visible[None, :], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        rescale = tl.exp2(maximum - new_maximum)
        weights = tl.exp2(scores - new_maximum[:, None])
        total = total * rescale + tl.sum(weights, 1)
        values = tl.load(
            value_ptr + offsets[:, None] + dims[None, :],
            mask=mask,
            other=0.0,
        )
        products = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        weighted = weighted * rescale[:, None] + products
        maximum = new_maximum
    return weighted, maximum, total


@triton.jit
def load_shared_partial(
    shared_sums_ptr,
    shared_maxima_ptr,
    shared_totals_ptr,
    place,
    exists,
    query_heads,
    is_used,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_DIMS: tl.constexpr,
):
    """Load the partial result at a place for one KV head's query heads [GROUP_ROWS].

    `query_heads` has padding behind the heads of the group, `is_used` [GROUP_ROWS, NUM_DIMS] says
    what is none.

    Returns:
        Sums [GROUP_ROWS, NUM_DIMS], maxima and totals; what weighs nothing if it does not exist.
    """
    dims = tl.arange(0, NUM_DIMS)
    is_head = (tl.max(is_used.to(tl.int32), 1) > 0) & exists
    columns = place.to(tl.int64) * NUM_HEADS + query_heads
    maximum = tl.load(shared_maxima_ptr + columns, mask=is_head, other=float("-inf"))
    total = tl.load(shared_totals_ptr + columns, mask=is_head, other=0.0)
    sums = shared_sums_ptr + columns[:, None] * HEAD_DIM + dims[None, :]
    weighted = tl.load(sums, mask=is_used & exists, other=0.0)
    return weighted, maximum, total


@triton.jit
def add_partial(weighted, maximum, total, part_weighted, part_maximum, part_total):
    """Merge two partial results by log-sum-exp; either may be empty, with a maximum of -inf.

    Returns:
        Sums of weighted values, largest scores in base 2 and sums of weights relative to them.
    """
    new_maximum = tl.maximum(maximum, part_maximum)
    reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    rescale = tl.exp2(maximum - reference)
    weight = tl.exp2(part_maximum - reference)
    total = total * rescale + part_total * weight
    weighted = weighted * rescale[:, None] + part_weighted * weight[:, None]
    return weighted, new_maximum, total
