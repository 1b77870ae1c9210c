"""What a row's top-k, top-p and min-p say about its cutoff, once its likely logits are at hand.

Knows a row's record and some of its logits, or the pointer to all; does not know how they were
chosen. The rules are those of `kernels.sampling_filters`: min-p first, then the k largest and all
that equal the k-th, then the smallest set of the likeliest that reaches p of what is left.

Thresholds are searched among logits; what is kept is said of scaled ones, as the reference divides
by the temperature first and two logits may round to one quotient.
"""

import triton
import triton.language as tl

from nanobatch.kernels.gpu.sampling_records import (
    LOG_MIN_P,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    load_double,
    load_float,
    load_int,
)
from nanobatch.kernels.gpu.threshold_search import (
    COUNT,
    MASS,
    MASS_ABOVE,
    MINUS_INF_KEY,
    TIES,
    from_key,
    search,
    to_key,
    total_weight,
)

_INT_MAX = tl.constexpr(2**31 - 1)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def is_top_p_alone(record, vocab_size):
    """Say whether a row's nucleus is one of all its tokens."""
    has_others = (load_int(record, TOP_K) < vocab_size) | (
        load_float(record, LOG_MIN_P) > -float("inf")
    )
    return (load_double(record, TOP_P) < 1.0) & ~has_others


@triton.jit
def row_mass(tile_masses, record, vocab_size, num_tiles, NUM_TILES: tl.constexpr):
    """Add up the row's tiles: the sum of probabilities relative to the largest, where known."""
    mass = tl.full([], float("inf"), tl.float32)
    if is_top_p_alone(record, vocab_size):
        tiles = tl.arange(0, NUM_TILES)
        is_tile = tiles < num_tiles
        largest = tl.load(tile_masses + 2 * tiles, mask=is_tile, other=-float("inf"))
        masses = tl.load(tile_masses + 2 * tiles + 1, mask=is_tile, other=0.0)
        scale = _LOG2_E / load_float(record, TEMPERATURE)
        mass = tl.sum(masses * tl.exp2((largest - tl.max(largest, axis=0)) * scale), axis=0)
    return mass


@triton.jit
def solve_cutoff(
    logits,
    ids,
    record,
    largest,
    complete_from,
    row_mass,
    vocab_size,
    ROW_TILE: tl.constexpr,
    NUM_PIVOTS: tl.constexpr,
):
    """Find a row's cutoff among some logits, or in the whole row.

    Args:
        logits: Logits or the pointer to them; see `threshold_search.weight_at`.
        ids: Ids of the logits.
        record: The row's record.
        largest: The row's largest logit, finite.
        complete_from: Key from which on upward `logits` are all the row has.
        row_mass: Sum of all probabilities relative to the largest's, if top-p is alone, else +inf.
        vocab_size: Number of logits in the row.
        ROW_TILE: See `threshold_search.weight_at`.
        NUM_PIVOTS: See `threshold_search.weight_at`.

    Returns:
        Least scaled logit kept, largest id kept among those equal to it, and whether that is so:
        False if what decides it lies below `complete_from`.
    """
    temperature = load_float(record, TEMPERATURE)
    row = (largest, _LOG2_E / temperature, temperature, largest)
    high = to_key(largest)
    low = _least_key(tl.div_rn(largest, temperature) + load_float(record, LOG_MIN_P), temperature)
    low = tl.minimum(low, high)
    is_exact = low >= complete_from
    top_k, top_p = load_int(record, TOP_K), load_double(record, TOP_P)
    if top_k < vocab_size:
        start = tl.maximum(low, complete_from)
        if total_weight(logits, ids, row, start, vocab_size, COUNT, ROW_TILE) >= top_k:
            low, _ = search(
                logits, ids, row, start, high, top_k, 0, vocab_size, COUNT, ROW_TILE, NUM_PIVOTS
            )
            is_exact = low >= complete_from
    last_tie = tl.full([], _INT_MAX, tl.int32)
    if top_p < 1.0:
        start = tl.maximum(low, complete_from)
        mass = total_weight(logits, ids, row, start, vocab_size, MASS, ROW_TILE)
        wanted = top_p * tl.where(is_exact, mass, row_mass).to(tl.float64)
        is_exact = mass.to(tl.float64) >= wanted
        if is_exact:
            low, _ = search(
                logits, ids, row, start, high, wanted, 0, vocab_size, MASS, ROW_TILE, NUM_PIVOTS
            )
            last_tie = _last_tie(
                logits, ids, row, from_key(low), wanted, vocab_size, ROW_TILE, NUM_PIVOTS
            )
            # A logit just below may equal the cutoff once scaled.
            outside = from_key(tl.maximum(complete_from - 1, MINUS_INF_KEY))
            is_exact = tl.div_rn(from_key(low), temperature) > tl.div_rn(outside, temperature)
    elif top_k >= vocab_size:
        is_exact = low <= high  # always: the largest logit alone decides min-p
    return tl.div_rn(from_key(low), temperature), last_tie, is_exact


@triton.jit
def _least_key(floor, temperature):
    """Return the key of the least number whose quotient by the temperature reaches the floor."""
    key = tl.full([], MINUS_INF_KEY, tl.int64)
    if floor > -float("inf"):
        key = to_key(floor * temperature) - 4  # the product's error is less than that
        while tl.div_rn(from_key(key), temperature) < floor:
            key += 1
    return key


@triton.jit
def _last_tie(
    logits,
    ids,
    row,
    cutoff_logit,
    wanted,
    vocab_size,
    ROW_TILE: tl.constexpr,
    NUM_PIVOTS: tl.constexpr,
):
    """Return the largest id that a nucleus keeps among the tokens equal to its least likely one."""
    largest, exponent_scale, temperature, _ = row
    row = (largest, exponent_scale, temperature, tl.div_rn(cutoff_logit, temperature))
    first = tl.full([], MINUS_INF_KEY, tl.int64)
    above = total_weight(logits, ids, row, first, vocab_size, MASS_ABOVE, ROW_TILE)
    lowest = -vocab_size.to(tl.int64)
    num_ties = total_weight(logits, ids, row, lowest, vocab_size, TIES, ROW_TILE)
    weight = tl.exp2((cutoff_logit - largest) * exponent_scale)
    num_kept = (wanted - above.to(tl.float64)) / weight.to(tl.float64)
    last_tie = tl.full([], _INT_MAX, tl.int32)
    if num_kept <= num_ties.to(tl.float64) - 1.0:
        num_kept = tl.maximum(tl.ceil(num_kept), 1.0)
        negated, _ = search(
            logits, ids, row, lowest, lowest * 0, num_kept, 0, vocab_size, TIES, ROW_TILE,
            NUM_PIVOTS,
        )  # fmt: skip
        last_tie = (-negated).to(tl.int32)
    return last_tie
