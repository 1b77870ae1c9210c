"""Search a row's logits for the largest value at which enough weight lies at or above it.

Knows logits, in registers or in memory, and four ways to weigh them; does not know sampling
parameters or what the weight is wanted for. A search narrows an interval of integers by a few
pivots at a time: the integers are float32 values in their order (`to_key`), or negated ids.

Sums are taken in float32 and in a fixed order. A partial sum never shrinks when a term is added, so
weight is monotone in the pivot whatever the rounding, and a search ends where it should.
"""

import triton
import triton.language as tl

MINUS_INF_KEY = tl.constexpr(-0x7F800001)
"""`to_key` of -inf: the least key of a number."""

COUNT = tl.constexpr(0)
"""Weigh each logit 1."""
MASS = tl.constexpr(1)
"""Weigh each logit by its probability relative to the largest's."""
MASS_ABOVE = tl.constexpr(2)
"""Weigh as MASS what is above the cutoff when scaled, and the rest 0."""
TIES = tl.constexpr(3)
"""Weigh 1 what equals the cutoff when scaled, and order it by negated id."""


@triton.jit
def to_key(value):
    """Map a float32 number to an int64 of the same order."""
    bits = value.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def from_key(key):
    """Map an int64 from `to_key` back to its float32 number."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weight_at(
    logits,
    ids,
    row,
    pivots,
    vocab_size,
    KIND: tl.constexpr,
    ROW_TILE: tl.constexpr,
    NUM_PIVOTS: tl.constexpr,
):
    """Sum the weight at or above each pivot.

    Args:
        logits: [N] some logits of the row in registers, -inf where there are none; with ROW_TILE,
            the pointer to all of them.
        ids: [N] their vocabulary ids; unused with ROW_TILE.
        row: (largest logit, log2(e) / temperature, temperature, scaled cutoff), of which each kind
            uses what it needs.
        pivots: [NUM_PIVOTS] int64 keys, or negated ids for `TIES`.
        vocab_size: Number of logits in the row.
        KIND: How to weigh.
        ROW_TILE: 0 for logits in registers, else how many to load at a time.
        NUM_PIVOTS: Number of pivots, a power of two.

    Returns:
        [NUM_PIVOTS] float32.
    """
    bounds = _bounds(pivots, KIND)[:, None]  # [NUM_PIVOTS, 1]
    if ROW_TILE == 0:
        values, weights = _weigh(logits, ids, row, KIND)
        sums = tl.where(values[None, :] >= bounds, weights[None, :], 0.0)
    else:
        sums = tl.zeros([NUM_PIVOTS, ROW_TILE], tl.float32)
        for start in range(0, vocab_size, ROW_TILE):
            tile_ids = start + tl.arange(0, ROW_TILE)
            tile = tl.load(logits + tile_ids, mask=tile_ids < vocab_size, other=-float("inf"))
            values, weights = _weigh(tile, tile_ids, row, KIND)
            sums += tl.where(values[None, :] >= bounds, weights[None, :], 0.0)
    return tl.sum(sums, axis=1)


@triton.jit
def total_weight(logits, ids, row, pivot, vocab_size, KIND: tl.constexpr, ROW_TILE: tl.constexpr):
    """Sum the weight at or above one pivot; see `weight_at`."""
    pivots = pivot + tl.zeros([1], tl.int64)
    return tl.max(weight_at(logits, ids, row, pivots, vocab_size, KIND, ROW_TILE, 1), axis=0)


@triton.jit
def search(
    logits,
    ids,
    row,
    low,
    high,
    wanted,
    enough,
    vocab_size,
    KIND: tl.constexpr,
    ROW_TILE: tl.constexpr,
    NUM_PIVOTS: tl.constexpr,
):
    """Find the largest pivot in low..high that enough weight reaches.

    Args:
        logits: As for `weight_at`, like all that is not named here.
        ids: See `weight_at`.
        row: See `weight_at`.
        low: Lowest candidate, int64; it must satisfy the condition.
        high: Highest candidate; nothing lies above it.
        wanted: Weight that must lie at or above the pivot, float64 and above 0.
        enough: Stop at any pivot with `wanted` to `enough` weight; 0 to find the largest.
        vocab_size: See `weight_at`.
        KIND: See `weight_at`.
        ROW_TILE: See `weight_at`.
        NUM_PIVOTS: How many pivots are tried at a time.

    Returns:
        The pivot, and the weight there (infinite if only `low` qualified).
    """
    reached = low * 0.0 + float("inf")
    while (low < high) & (reached > enough):
        step = (high - low) // (NUM_PIVOTS + 1) + 1
        pivots = low + step * (1 + tl.arange(0, NUM_PIVOTS).to(tl.int64))
        weights = weight_at(
            logits, ids, row, tl.minimum(pivots, high), vocab_size, KIND, ROW_TILE, NUM_PIVOTS
        )
        is_reached = (weights.to(tl.float64) >= wanted) & (pivots <= high)
        low += step * tl.sum(is_reached.to(tl.int64), axis=0)
        high = tl.minimum(high, low + step - 1)
        reached = tl.minimum(reached, tl.min(tl.where(is_reached, weights, float("inf")), axis=0))
    return low, reached


@triton.jit
def _bounds(pivots, KIND: tl.constexpr):
    return pivots.to(tl.float32) if KIND == TIES else from_key(pivots)  # float32 holds any id


@triton.jit
def _weigh(logits, ids, row, KIND: tl.constexpr):
    """Return by what logits are ordered and what each weighs."""
    largest, exponent_scale, temperature, cutoff = row
    values, weights = logits, tl.full(logits.shape, 1.0, tl.float32)
    if KIND == MASS:
        weights = tl.exp2((logits - largest) * exponent_scale)
    elif KIND == MASS_ABOVE:
        is_above = tl.div_rn(logits, temperature) > cutoff
        weights = tl.where(is_above, tl.exp2((logits - largest) * exponent_scale), 0.0)
    elif KIND == TIES:
        values = -ids.to(tl.float32)
        weights = tl.where(tl.div_rn(logits, temperature) == cutoff, 1.0, 0.0)
    return values, weights
