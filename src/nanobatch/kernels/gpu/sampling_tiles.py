"""Rank the ids of one tile of a row: what the draw does in registers.

Knows a tile of logits, the row's noise key and the best scores so far; does not know memory, rows
or filters. A tile is four tensors of a quarter of its ids each, those whose noise is word j of the
same Philox calls.

The best so far is kept per position in the tile, so that ranking needs no exchange between threads:
`best` and `runner_up` scores and `best_ids`, and whether a logit `is_bad` (NaN or +inf). Only
`floor`, which a tile must reach to be looked at, is common to all.
"""

import triton
import triton.language as tl

from nanobatch.kernels.gpu.philox import (
    MAX_NOISE,
    NOISE_ERROR,
    approximate_gumbel,
    exact_gumbel,
    gumbel_bound,
    philox_words,
)

INT_MAX = tl.constexpr(2**31 - 1)

_SCALE_ERROR = tl.constexpr(2.0**-20)
_REACH = tl.constexpr(32.0)


@triton.jit
def any_of(mask):
    """Say whether a condition holds anywhere in a tile."""
    return tl.max(mask.to(tl.int32), axis=0) > 0


@triton.jit
def load_quads(logits_ptr, start, vocab_size, TILE: tl.constexpr):
    """Load a tile of a row as four tensors [TILE / 4]: ids start + 4 * i + j for j = 0..3.

    One vector load a thread; what is beyond the vocabulary reads as -inf.
    """
    ids = start + tl.arange(0, TILE)
    logits = tl.load(logits_ptr + ids, mask=ids < vocab_size, other=-float("inf"))
    even, odd = tl.split(logits.reshape(TILE // 4, 2, 2))  # each [TILE / 4, 2]
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def keep_quads(quads, start, temperature, cutoff, last_tie, TILE: tl.constexpr):
    """Drop logits below a row's cutoff: all but NaN and +inf, which end the row.

    The cutoff is a scaled logit; of those that equal it, ids up to `last_tie` stay.
    """
    ids = start + 4 * tl.arange(0, TILE // 4)
    first = _kept(quads[0], ids, temperature, cutoff, last_tie)
    second = _kept(quads[1], ids + 1, temperature, cutoff, last_tie)
    third = _kept(quads[2], ids + 2, temperature, cutoff, last_tie)
    fourth = _kept(quads[3], ids + 3, temperature, cutoff, last_tie)
    return first, second, third, fourth


@triton.jit
def _kept(logits, ids, temperature, cutoff, last_tie):
    scaled = tl.div_rn(logits, temperature)  # as the reference rounds it: ties depend on that
    is_dropped = (scaled < cutoff) | ((scaled == cutoff) & (ids > last_tie))
    return tl.where(is_dropped, -float("inf"), logits)


@triton.jit
def empty_ranking(TILE: tl.constexpr):
    """Start a ranking: best, runner_up, best_ids, is_bad [TILE / 4] and the floor."""
    nothing = tl.full([TILE // 4], -float("inf"), tl.float32)
    zeros = tl.zeros([TILE // 4], tl.int32)
    return nothing, nothing, zeros, zeros, -float("inf")


@triton.jit
def floor_below(score):
    """Return below which approximate score another is certainly worse than this one.

    The distance is twice the error of a score: that of the noise, and 2**-20 of the scaled logit
    for multiplying with a rounded 1 / temperature and for roundings. A scaled logit that reaches
    the score is less than 32 from it.
    """
    size = tl.where(tl.abs(score) < float("inf"), tl.abs(score), 0.0)
    return score - 2.0 * (NOISE_ERROR + (size + _REACH) * _SCALE_ERROR)


@triton.jit
def rank_greedy(quads, start, best, best_ids, is_bad, floor, TILE: tl.constexpr):
    """Rank a tile by its logits; earlier tiles and lower ids win ties at the same position."""
    if any_of(~(_largest(quads) <= floor)):
        ids = start + 4 * tl.arange(0, TILE // 4)
        for word in tl.static_range(4):
            logits = quads[word]
            is_bad |= (~(logits < float("inf"))).to(tl.int32)
            best_ids = tl.where(logits > best, ids + word, best_ids)
            best = tl.where(logits > best, logits, best)
        floor = tl.max(best, axis=0)
    return best, best_ids, is_bad, floor


@triton.jit
def rank_sampled(
    quads,
    start,
    noise_key,
    inverse_temperature,
    best,
    runner_up,
    best_ids,
    is_bad,
    floor,
    TILE: tl.constexpr,
):
    """Rank a tile by its logits / temperature plus approximate noise."""
    largest = _largest(quads) * inverse_temperature
    if any_of(~(largest + MAX_NOISE < floor)):  # true for NaN
        words = _tile_words(start, noise_key, TILE)
        if any_of(~(largest + gumbel_bound(_smallest(words)) < floor)):
            ids = start + 4 * tl.arange(0, TILE // 4)
            for word in tl.static_range(4):
                logits = quads[word]
                is_number = logits < float("inf")
                is_bad |= (~is_number).to(tl.int32)
                scores = logits * inverse_temperature + approximate_gumbel(words[word])
                scores = tl.where(is_number, scores, -float("inf"))
                runner_up = tl.maximum(runner_up, tl.minimum(scores, best))
                best_ids = tl.where(scores > best, ids + word, best_ids)
                best = tl.maximum(scores, best)
            floor = floor_below(tl.max(best, axis=0))
    return best, runner_up, best_ids, is_bad, floor


@triton.jit
def rank_exactly(quads, start, noise_key, temperature, best, best_ids, floor, TILE: tl.constexpr):
    """Rank a tile by exact scores, if any can reach the floor; needs `enable_fp_fusion=False`."""
    words = _tile_words(start, noise_key, TILE)
    largest = tl.div_rn(_largest(quads), temperature)
    if any_of(~(largest + gumbel_bound(_smallest(words)) < floor)):
        ids = start + 4 * tl.arange(0, TILE // 4)
        for word in tl.static_range(4):
            scores = tl.div_rn(quads[word], temperature) + exact_gumbel(words[word])
            best_ids = tl.where(scores > best, ids + word, best_ids)
            best = tl.where(scores > best, scores, best)
    return best, best_ids


@triton.jit
def _tile_words(start, noise_key, TILE: tl.constexpr):
    position, sample, seed_low, seed_high = noise_key
    groups = (start // 4 + tl.arange(0, TILE // 4)).to(tl.uint32)
    return philox_words(groups, position, sample, seed_low, seed_high)


@triton.jit
def _largest(quads):
    """Take the largest of four logits at each position; NaN wins."""
    low = tl.maximum(quads[0], quads[1], propagate_nan=tl.PropagateNan.ALL)
    high = tl.maximum(quads[2], quads[3], propagate_nan=tl.PropagateNan.ALL)
    return tl.maximum(low, high, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _smallest(words):
    return tl.minimum(tl.minimum(words[0], words[1]), tl.minimum(words[2], words[3]))
