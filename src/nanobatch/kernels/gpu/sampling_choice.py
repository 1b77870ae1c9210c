"""Choose each row's token from what the draw's programs found, exactly.

Knows the partial results of `sampling` and, for the few rows whose two best scores are too close
to tell apart, goes back to the logits. Counts the token where the row has penalties. Does not know
how programs found what they found.
"""

import triton
import triton.language as tl

from nanobatch.kernels.gpu.sampling_edits import count_token
from nanobatch.kernels.gpu.sampling_records import (
    FLAGS,
    IS_FILTERED,
    IS_ROW,
    NOISE_SEED,
    SAMPLE_INDEX,
    TEMPERATURE,
    is_wanted,
    load_float,
    load_int,
    load_word,
    record_of,
)
from nanobatch.kernels.gpu.sampling_thresholds import load_cutoff
from nanobatch.kernels.gpu.sampling_tiles import (
    INT_MAX,
    empty_ranking,
    floor_below,
    keep_quads,
    load_quads,
    rank_exactly,
)

_IS_ROW = tl.constexpr(IS_ROW)
_IS_FILTERED = tl.constexpr(IS_FILTERED)


@triton.jit
def is_filtered(record):
    """Say whether a row asks for a cutoff."""
    return (load_int(record, FLAGS) & _IS_FILTERED) != 0


@triton.jit
def noise_key_of(record, positions_ptr, row):
    """Load what keys a row's noise: position, sample index, low and high word of the seed."""
    position = tl.load(positions_ptr + row).to(tl.uint32)
    sample = load_word(record, SAMPLE_INDEX)
    return position, sample, load_word(record, NOISE_SEED), load_word(record, NOISE_SEED + 1)


@triton.jit
def two_best(scores, ids):
    """Return the best score, the best of all other ids, and the lowest id that has the best."""
    top = tl.max(scores, axis=0)
    best_id = tl.min(tl.where(scores == top, ids, INT_MAX), axis=0)
    return top, tl.max(tl.where(ids == best_id, -float("inf"), scores), axis=0), best_id


@triton.jit(do_not_specialize=["split_size", "num_splits"])
def choose_kernel(
    token_ids_ptr,
    is_nan_ptr,
    partials_ptr,
    logits_ptr,
    logits_stride,
    records_ptr,
    positions_ptr,
    is_active_ptr,
    limits_ptr,
    is_seen_ptr,
    num_generated_ptr,
    vocab_size,
    split_size,
    num_splits,
    TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Choose one row's token; see `sampling.draw`."""
    row = tl.program_id(0)
    record = record_of(records_ptr, row)
    token_id = tl.full([], 0, tl.int32)
    is_nan = token_id > 0
    if is_wanted(record, is_active_ptr, row, _IS_ROW):
        partials = partials_ptr + row * 4 * num_splits
        top, second, token_id, is_bad = _best_of_splits(partials, num_splits, NUM_SPLITS)
        is_nan = (is_bad != 0) | (top == -float("inf"))
        floor = floor_below(top)
        is_sampled = load_float(record, TEMPERATURE) > 0.0
        if is_sampled & ~is_nan & ~(second < floor):
            token_id = _exact_token(
                partials,
                floor,
                logits_ptr + row.to(tl.int64) * logits_stride,
                record,
                positions_ptr,
                limits_ptr,
                row,
                vocab_size,
                split_size,
                num_splits,
                TILE,
            )
        token_id = tl.where(is_nan, 0, token_id)
        if is_seen_ptr is not None:
            count_token(record, is_seen_ptr, num_generated_ptr, vocab_size, token_id)
    tl.store(token_ids_ptr + row, token_id)
    tl.store(is_nan_ptr + row, is_nan)


@triton.jit
def _best_of_splits(partials, num_splits, NUM_SPLITS: tl.constexpr):
    """Combine what a row's programs found: the two best scores, the best id, and is bad."""
    splits = tl.arange(0, NUM_SPLITS)
    is_split = splits < num_splits
    scores = tl.load(partials + splits, is_split, 0).to(tl.float32, bitcast=True)
    seconds = tl.load(partials + num_splits + splits, is_split, 0).to(tl.float32, bitcast=True)
    ids = tl.load(partials + 2 * num_splits + splits, is_split, 0)
    is_bad = tl.load(partials + 3 * num_splits + splits, is_split, 0)
    top, second, best_id = two_best(tl.where(is_split, scores, -float("inf")), ids)
    seconds = tl.where(is_split, seconds, -float("inf"))
    return top, tl.maximum(second, tl.max(seconds, axis=0)), best_id, tl.max(is_bad, axis=0)


@triton.jit
def _exact_token(
    partials,
    floor,
    row_logits,
    record,
    positions_ptr,
    limits_ptr,
    row,
    vocab_size,
    split_size,
    num_splits,
    TILE: tl.constexpr,
):
    """Find a row's best id by exact scores, in the splits whose approximate best reaches floor."""
    temperature = load_float(record, TEMPERATURE)
    noise_key = noise_key_of(record, positions_ptr, row)
    best, _, best_ids, _, _ = empty_ranking(TILE)
    for split in range(0, num_splits):
        if ~(tl.load(partials + split).to(tl.float32, bitcast=True) < floor):
            first = split * split_size
            for start in range(first, tl.minimum(first + split_size, vocab_size), TILE):
                quads = load_quads(row_logits, start, vocab_size, TILE)
                if limits_ptr is not None:  # decided by the compiler
                    if is_filtered(record):
                        cutoff, last_tie = load_cutoff(limits_ptr, row)
                        quads = keep_quads(quads, start, temperature, cutoff, last_tie, TILE)
                best, best_ids = rank_exactly(
                    quads, start, noise_key, temperature, best, best_ids, floor, TILE
                )
    _, _, best_id = two_best(best, best_ids)
    return best_id
