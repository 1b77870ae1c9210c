"""Draw one token for each row of scaled logits: the largest score, with or without noise.

Adding independent Gumbel noise to logits and taking the largest draws from their softmax (Gumbel
1954; Maddison et al., "A* Sampling", NeurIPS 2014, section 2): no normalisation, no sort. Knows
nothing of slots or sampling parameters; `philox` says which noise belongs to whom.

`draw_dense` adds all the noise and runs on any device; `draw_pruned` is for the CPU: it gives the
same tokens from a thousandth of the logarithms. Both take the lowest id among equal scores.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from nanobatch.kernels.philox import (
    MAX_GUMBEL_NOISE,
    NUM_WORDS,
    NumpyWords,
    group_words_numpy,
    gumbel_noise,
    words_to_gumbel_numpy,
)

FloatArray = npt.NDArray[np.floating[Any]]
RowArray = npt.NDArray[np.intp]

_BLOCK_NUM_GROUPS: Final = 16_384
"""Groups of four ids worked on at once: their 64-bit words stay in a core's second-level cache."""

_BOUND_SLACK: Final = 1e-4
"""Far above the error of a float32 logarithm of at most 23 in size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseKeys:
    """Which noise each row draws.

    Attributes:
        seeds: [n] 64-bit seed of each row.
        samples: [n] sample index.
        positions: [n] position of the token being sampled.
    """

    seeds: npt.NDArray[np.uint64]
    samples: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]

    def __getitem__(self, rows: slice | RowArray) -> "NoiseKeys":
        return NoiseKeys(
            seeds=self.seeds[rows], samples=self.samples[rows], positions=self.positions[rows]
        )


def argmax_rows(scores: torch.Tensor) -> torch.Tensor:
    """Find the largest score of each row, the lowest id among equals.

    Args:
        scores: [n, vocab] float32 or float64. A row with NaN gets some id.

    Returns:
        [n] int64 ids.
    """
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1)
    # numpy compares with vector instructions where torch's CPU argmax goes one by one.
    return torch.from_numpy(scores.numpy().argmax(axis=-1))


def draw_dense(scaled_logits: torch.Tensor, keys: NoiseKeys) -> torch.Tensor:
    """Draw a token for each row, adding noise to every logit.

    Args:
        scaled_logits: [n, vocab] float32 or float64, divided by temperature; -inf is never drawn.
        keys: The noise of the n rows.

    Returns:
        [n] int64 token ids; 0 for a row with NaN or without a finite logit.
    """
    device = scaled_logits.device
    noise = gumbel_noise(
        torch.from_numpy(keys.seeds.view(np.int64)).to(device),
        torch.from_numpy(keys.samples).to(device),
        positions=torch.from_numpy(keys.positions).to(device),
        vocab_start=0,
        vocab_size=scaled_logits.shape[1],
    )
    scores = scaled_logits + noise
    is_drawable = scores.amax(dim=-1) > -torch.inf  # false for NaN
    return argmax_rows(scores).where(is_drawable, 0)


def draw_pruned(scaled_logits: torch.Tensor, keys: NoiseKeys) -> torch.Tensor:
    """Draw the tokens that `draw_dense` draws, on CPU, computing noise only where it can win.

    For each group of four ids, which share a Philox call:

    1. The group of the row's largest logit is scored: the score to beat.
    2. A group stays if its largest logit + `MAX_GUMBEL_NOISE` reaches that score; it is hashed.
    3. It stays if its largest logit - log(u), u from the smallest of its four words, reaches it:
       noise is -log(-log(1 - u)) <= -log(u). Of SmolLM2's 12,288 groups about eleven do, at
       temperature 1; they get their noise.

    Exact, as rounded addition is monotone: a logit plus a bound of its noise is never below the
    logit plus its noise.
    """
    logits = scaled_logits.numpy()
    num_padding = -logits.shape[1] % NUM_WORDS
    if num_padding:
        logits = np.pad(logits, ((0, 0), (0, num_padding)), constant_values=-np.inf)
    num_groups = logits.shape[1] // NUM_WORDS
    grouped = logits.reshape(len(logits), num_groups, NUM_WORDS)
    group_maxima = _max_of_four(grouped)
    every_row, best_groups = np.arange(len(logits)), group_maxima.argmax(axis=-1)
    best_scores = _scores(grouped, keys, rows=every_row, groups=best_groups).max(axis=-1)
    rows, groups = _surviving_groups(group_maxima, best_scores, keys)
    scores = _scores(grouped, keys, rows=rows, groups=groups)  # [num_left, 4]
    return torch.from_numpy(_first_best_ids(scores, rows=rows, groups=groups, num_rows=len(logits)))


def _surviving_groups(
    group_maxima: FloatArray, best_scores: FloatArray, keys: NoiseKeys
) -> tuple[RowArray, RowArray]:
    """Find the groups whose noise can lift them to their row's score to beat.

    Args:
        group_maxima: [n, num_groups] largest logit of each group.
        best_scores: [n] score to beat.
        keys: The noise of the n rows.

    Returns:
        Row and group of each survivor, in ascending order.
    """
    is_reachable = group_maxima + np.float32(MAX_GUMBEL_NOISE) >= best_scores[:, None]
    num_reachable = np.count_nonzero(is_reachable, axis=-1)
    survivors = []
    for block in _row_blocks(num_reachable):
        places = np.flatnonzero(is_reachable[block])  # in the block; far cheaper than nonzero
        block_rows = np.repeat(np.arange(block.stop - block.start), num_reachable[block])
        groups = places - block_rows * group_maxima.shape[1]
        rows = block_rows + block.start
        bounds = _noise_bounds(_words(keys, rows=rows, groups=groups))
        stays = group_maxima[block].take(places) + bounds >= best_scores.take(rows)
        survivors.append((rows[stays], groups[stays]))
    rows, groups = (np.concatenate(parts) for parts in zip(*survivors, strict=True))
    return rows, groups


def _row_blocks(num_groups: npt.NDArray[np.intp]) -> Iterator[slice]:
    """Cut rows into slices of one row or at most `_BLOCK_NUM_GROUPS` groups."""
    start, total = 0, 0
    for row, count in enumerate(num_groups.tolist()):
        if row > start and total + count > _BLOCK_NUM_GROUPS:
            yield slice(start, row)
            start, total = row, 0
        total += count
    yield slice(start, len(num_groups))


def _max_of_four(grouped: FloatArray) -> FloatArray:
    """Reduce [n, num_groups, 4] to [n, num_groups]; numpy's own reduction of 4 is slow."""
    return np.maximum(
        np.maximum(grouped[..., 0], grouped[..., 1]), np.maximum(grouped[..., 2], grouped[..., 3])
    )


def _words(keys: NoiseKeys, *, rows: RowArray, groups: RowArray) -> NumpyWords:
    """Hash groups in ascending order of their rows."""
    is_one_row = rows.size > 0 and rows[0] == rows[-1]
    owners = keys[rows[:1]] if is_one_row else keys[rows]  # broadcasting a key halves the work
    return group_words_numpy(
        groups.astype(np.uint64), owners.seeds, samples=owners.samples, positions=owners.positions
    )


def _scores(
    grouped: FloatArray,
    keys: NoiseKeys,
    *,
    rows: RowArray,
    groups: RowArray,
) -> FloatArray:
    """Add noise to the logits of some groups: [len(groups), 4]."""
    words = np.stack(_words(keys, rows=rows, groups=groups), axis=-1)
    return grouped[rows, groups] + words_to_gumbel_numpy(words)


def _noise_bounds(words: NumpyWords) -> npt.NDArray[np.float32]:
    """Bound the noise of each group from above with one fast float32 logarithm."""
    smallest = np.minimum(np.minimum(words[0], words[1]), np.minimum(words[2], words[3]))
    uniform = (smallest.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    bounds: npt.NDArray[np.float32] = np.float32(_BOUND_SLACK) - np.log(uniform)
    return bounds


def _first_best_ids(
    scores: FloatArray,
    *,
    rows: RowArray,
    groups: RowArray,
    num_rows: int,
) -> npt.NDArray[np.int64]:
    """Take each row's best id from [num_left, 4] scores in ascending order of row and group."""
    words = scores.argmax(axis=-1)
    best = scores[np.arange(len(scores)), words]
    order = np.lexsort((-best, rows))  # stable: the lowest group stays first among equals
    winning_rows, first = np.unique(rows[order], return_index=True)
    winners = order[first]
    ids = np.zeros(num_rows, dtype=np.int64)
    drawable = best[winners] > -np.inf
    ids[winning_rows] = np.where(drawable, groups[winners] * NUM_WORDS + words[winners], 0)
    return ids
