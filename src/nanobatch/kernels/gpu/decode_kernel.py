"""The Triton kernel of paged decode attention: programs that work off (item, KV head) pairs.

Launched by `gpu.decode_attention`, which documents its arguments; `gpu.decode_range` goes through
the keys of a pair, `gpu.decode_merge` adds up what is left in pieces. Items that a step does not
reach, because the row is still shorter or its window has moved on, take no part: results are those
of a plan made for this very step.

With HAS_SHARED, a row may have partial results over its first keys already
(`gpu.shared_kernel`): the first of its items goes on from them.

A program starts while the kernel in front still runs (`gpu.dependent_launch`), the one that stores
the step's keys and values. What was written before the step's first layer, the plan, lengths and
block tables, it has read by the time that kernel ends.
"""

import triton
import triton.language as tl

from nanobatch.kernels.gpu.decode_merge import visible_splits
from nanobatch.kernels.gpu.decode_range import add_partial, attend_to_range, load_shared_partial
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
def _load_row(
    row,
    exists,
    seq_lens_ptr,
    block_starts_ptr,
    row_first_tokens_ptr,
    row_num_partials_ptr,
    HAS_SHARED: tl.constexpr,
):
    """Read a row's length, where its table begins, its first own key and its shared results."""
    seq_len = tl.load(seq_lens_ptr + row, mask=exists, other=0)
    table_start = tl.load(block_starts_ptr + row, mask=exists, other=0)
    row_first = 0
    num_shared = 0
    if HAS_SHARED:
        row_first = tl.load(row_first_tokens_ptr + row, mask=exists, other=0)
        num_shared = tl.load(row_num_partials_ptr + row, mask=exists, other=0)
    return seq_len, table_start, row_first, num_shared


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
    row_first_tokens_ptr,
    row_num_partials_ptr,
    shared_sums_ptr,
    shared_maxima_ptr,
    shared_totals_ptr,
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
    HAS_SHARED: tl.constexpr,
    MAX_SHARED_PARTIALS: tl.constexpr,
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
    seq_len, table_start, row_first, num_shared = _load_row(
        row,
        pair < num_pairs,
        seq_lens_ptr,
        block_starts_ptr,
        row_first_tokens_ptr,
        row_num_partials_ptr,
        HAS_SHARED,
    )
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
        end_token = first_token + split_tokens
        if HAS_SHARED:  # a row's first item may begin between two multiples
            end_token -= first_token & (split_tokens - 1)
        end = tl.minimum(end_token, seq_len)
        query_heads = kv_head * GROUP + heads
        query = tl.load(
            query_ptr
            + row * query_row_stride
            + query_heads[:, None] * query_head_stride
            + dims[None, :],
            mask=is_used,
            other=0.0,
        )
        if HAS_SHARED:
            # The first one is loaded while keys are on their way: most rows have no other.
            num_partials = tl.where((first_token == row_first) & (seq_len > 0), num_shared, 0)
            part_weighted, part_maximum, part_total = load_shared_partial(
                shared_sums_ptr,
                shared_maxima_ptr,
                shared_totals_ptr,
                row * MAX_SHARED_PARTIALS,
                num_partials > 0,
                query_heads,
                is_used,
                NUM_KV_HEADS * GROUP,
                HEAD_DIM,
                NUM_DIMS,
            )
        weighted, maximum, total = attend_to_range(
            query,
            key_ptr + kv_head * kv_head_stride,
            value_ptr + kv_head * kv_head_stride,
            block_ids_ptr + table_start,
            first,
            end,
            scale_log2,
            block_stride,
            token_stride,
            HEAD_DIM,
            NUM_DIMS,
            BLOCK_SIZE,
            TILE,
            HAS_WINDOW,
            HAS_SHARED,
            IS_LARGE_POOL,
            GROUP_ROWS,
        )
        if HAS_SHARED:
            weighted, maximum, total = add_partial(
                weighted, maximum, total, part_weighted, part_maximum, part_total
            )
            for part in tl.range(1, num_partials, num_stages=1):
                part_weighted, part_maximum, part_total = load_shared_partial(
                    shared_sums_ptr,
                    shared_maxima_ptr,
                    shared_totals_ptr,
                    row * MAX_SHARED_PARTIALS + part,
                    True,
                    query_heads,
                    is_used,
                    NUM_KV_HEADS * GROUP,
                    HEAD_DIM,
                    NUM_DIMS,
                )
                weighted, maximum, total = add_partial(
                    weighted, maximum, total, part_weighted, part_maximum, part_total
                )
        # Under way while the result is stored.
        next_seq_len, next_table_start, next_row_first, next_num_shared = _load_row(
            next_row,
            next_pair < num_pairs,
            seq_lens_ptr,
            block_starts_ptr,
            row_first_tokens_ptr,
            row_num_partials_ptr,
            HAS_SHARED,
        )

        output_columns = (row * (NUM_KV_HEADS * GROUP) + query_heads)[:, None] * HEAD_DIM + dims
        # Every item of an inactive row writes the same zeros.
        if (first < end) | (seq_len == 0):
            if HAS_SPLITS:
                _, num_parts = visible_splits(seq_len, row_first, split_tokens, window, HAS_WINDOW)
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
        row_first, num_shared = next_row_first, next_num_shared
