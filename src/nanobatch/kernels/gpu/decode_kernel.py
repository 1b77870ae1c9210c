"""The Triton kernel of paged decode attention: programs that work off (item, KV head) pairs.

Launched by `gpu.decode_attention`, which documents its arguments; `gpu.decode_merge` adds up what
it leaves in pieces. Items that a step does not reach, because the row is still shorter or its
window has moved on, take no part: results are those of a plan made for this very step.

A program starts while the kernel in front still runs (`gpu.dependent_launch`), the one that stores
the step's keys and values. What was written before the step's first layer, the plan, lengths and
block tables, it has read by the time that kernel ends.
"""

import triton
import triton.language as tl

from nanobatch.kernels.gpu.decode_merge import visible_splits
from nanobatch.kernels.gpu.dependent_launch import wait_for_inputs


@triton.jit
def _load_item(
    pair,
    num_pairs,
    item_rows_ptr,
    item_first_tokens_ptr,
    item_partials_ptr,
    NUM_KV_HEADS: tl.constexpr,
    HAS_SPLITS: tl.constexpr,
):
    """Read a pair's item; zeros past the end of the list."""
    item = pair // NUM_KV_HEADS
    exists = pair < num_pairs
    row = tl.load(item_rows_ptr + item, mask=exists, other=0)
    first_token = tl.load(item_first_tokens_ptr + item, mask=exists, other=0)
    partial = 0
    if HAS_SPLITS:
        partial = tl.load(item_partials_ptr + item, mask=exists, other=0)
    return row, first_token, partial


@triton.jit
def _attend(
    query,
    key_ptr,
    value_ptr,
    table_ptr,
    first,
    end,
    scale_log2,
    block_stride,
    token_stride,
    GROUP_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_DIMS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_LARGE_POOL: tl.constexpr,
):
    """Attend with a group of heads [GROUP_ROWS, NUM_DIMS] to tokens first to end of one KV head.

    Tiles begin at absolute multiples of TILE.

    Returns:
        Sums of weighted values [GROUP_ROWS, NUM_DIMS], largest scores in base 2 and sums of
        weights relative to them [GROUP_ROWS], all fp32.
    """
    dims = tl.arange(0, NUM_DIMS)
    maximum = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    weighted = tl.zeros([GROUP_ROWS, NUM_DIMS], tl.float32)
    for start in range(first - first % TILE, end, TILE):
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
def _store_quotient(out, weighted, total, mask):
    """Store the weighted means; zeros where there was nothing to weigh."""
    quotient = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out, quotient.to(out.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=["split_tokens", "window"],
    do_not_specialize_on_alignment=["seq_lens_ptr", "block_ids_ptr", "block_starts_ptr"],
)
def decode_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    seq_lens_ptr,
    block_ids_ptr,
    block_starts_ptr,
    num_items_ptr,
    item_rows_ptr,
    item_first_tokens_ptr,
    item_partials_ptr,
    partial_sums_ptr,
    partial_maxima_ptr,
    partial_totals_ptr,
    queue_ptr,
    scale_log2,
    split_tokens,
    window,
    query_row_stride,
    query_head_stride,
    block_stride,
    token_stride,
    kv_head_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_DIMS: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_LARGE_POOL: tl.constexpr,
    HAS_SPLITS: tl.constexpr,
    IS_QUEUE: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    """Work off pairs until none is left. The KV heads of an item are neighbours in the list.

    What the next pair needs is loaded while the current one is computed: a pair then begins with
    its block ids instead of a chain of three loads that wait for each other.
    """
    program = tl.program_id(0)
    num_programs = tl.num_programs(0)
    heads = tl.arange(0, GROUP_ROWS)
    dims = tl.arange(0, NUM_DIMS)
    is_used = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]

    num_pairs = tl.load(num_items_ptr) * NUM_KV_HEADS
    pair = program
    # The grid is never larger than the list's capacity: no need to wait for the list's length.
    row, first_token, partial = _load_item(
        pair,
        num_programs,
        item_rows_ptr,
        item_first_tokens_ptr,
        item_partials_ptr,
        NUM_KV_HEADS,
        HAS_SPLITS,
    )
    seq_len = tl.load(seq_lens_ptr + row, mask=pair < num_pairs, other=0)
    table_start = tl.load(block_starts_ptr + row, mask=pair < num_pairs, other=0)
    wait_for_inputs(STARTS_EARLY)
    while pair < num_pairs:
        if IS_QUEUE:
            # Every pair takes one number: who gets the last one leaves the queue as it was.
            number = tl.atomic_add(queue_ptr, 1, sem="relaxed")
            tl.store(queue_ptr, 0, mask=number == num_pairs - 1)
            next_pair = num_programs + number
        else:
            next_pair = pair + num_programs
        next_row, next_first_token, next_partial = _load_item(
            next_pair,
            num_pairs,
            item_rows_ptr,
            item_first_tokens_ptr,
            item_partials_ptr,
            NUM_KV_HEADS,
            HAS_SPLITS,
        )

        kv_head = pair % NUM_KV_HEADS
        first = first_token
        if HAS_WINDOW:
            first = tl.maximum(first_token, seq_len - window)
        end = tl.minimum(first_token + split_tokens, seq_len)
        query_heads = kv_head * GROUP + heads
        query = tl.load(
            query_ptr
            + row * query_row_stride
            + query_heads[:, None] * query_head_stride
            + dims[None, :],
            mask=is_used,
            other=0.0,
        )
        weighted, maximum, total = _attend(
            query,
            key_ptr + kv_head * kv_head_stride,
            value_ptr + kv_head * kv_head_stride,
            block_ids_ptr + table_start,
            first,
            end,
            scale_log2,
            block_stride,
            token_stride,
            GROUP_ROWS,
            HEAD_DIM,
            NUM_DIMS,
            BLOCK_SIZE,
            TILE,
            HAS_WINDOW,
            IS_LARGE_POOL,
        )
        # Under way while the result is stored.
        next_exists = next_pair < num_pairs
        next_seq_len = tl.load(seq_lens_ptr + next_row, mask=next_exists, other=0)
        next_table_start = tl.load(block_starts_ptr + next_row, mask=next_exists, other=0)

        output_columns = (row * (NUM_KV_HEADS * GROUP) + query_heads)[:, None] * HEAD_DIM + dims
        # Every item of an inactive row writes the same zeros.
        if (first < end) | (seq_len == 0):
            if HAS_SPLITS:
                _, num_parts = visible_splits(seq_len, split_tokens, window, HAS_WINDOW)
                if num_parts > 1:
                    columns = partial.to(tl.int64) * (NUM_KV_HEADS * GROUP) + query_heads
                    tl.store(partial_maxima_ptr + columns, maximum, mask=heads < GROUP)
                    tl.store(partial_totals_ptr + columns, total, mask=heads < GROUP)
                    sums = partial_sums_ptr + columns[:, None] * HEAD_DIM + dims[None, :]
                    tl.store(sums, weighted, mask=is_used)
                else:
                    _store_quotient(out_ptr + output_columns, weighted, total, is_used)
            else:
                _store_quotient(out_ptr + output_columns, weighted, total, is_used)
        pair = next_pair
        row, first_token, partial = next_row, next_first_token, next_partial
        seq_len, table_start = next_seq_len, next_table_start
