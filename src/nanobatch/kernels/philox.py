"""Counter-based noise: every (seed, sample, position, vocabulary id) has its own Gumbel number.

Knows Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011,
section 3.3) and how its words become Gumbel noise. Keeps no state, and does not know logits,
slots or batches: that is why a row draws the same whatever its batch, order, shard or rank count.

How the noise is keyed. The 64-bit seed is Philox's key, low word first. The counter is
(vocabulary id // 4, position, sample, 0), lowest word first; word `id % 4` of the result belongs
to the id. No two (seed, sample, position, id) share a word, as Philox is a bijection of the
counter under each key.

From a word x to noise: u = (x + 0.5) * 2**-32 is never 0 or 1 and, like 1 - u, exact in float64;
g = -log(-log(1 - u)) is computed in float64, then rounded to float32. The large values of g, which
decide a draw, come from small u: in float32, 1 - u would be 1 for the 128 smallest words and their
noise infinite, and among 49,152 ids one draw in 680 meets such a word.

The logarithm is our own, of additions, multiplications and divisions only. IEEE 754 rounds these
alike everywhere, so torch on CPU, torch on CUDA and numpy agree bit for bit, which library
logarithms do not promise. A fused kernel has to switch contraction to FMA off.

Each function exists for torch (any device) and, with the suffix `_numpy`, for numpy: its twin in
tests and, with integer products three times as fast as torch's on CPU, the one the CPU path uses.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

MAX_GUMBEL_NOISE: Final = 22.875
"""Above any noise: the largest is 33 * log(2) = 22.8738..., at u = 2**-33. Exact in float32."""

NUM_WORDS: Final = 4
"""Vocabulary ids whose noise comes from one Philox call."""

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS: Final = 10
_LOW_WORD: Final = 0xFFFFFFFF

_MANTISSA_BITS: Final = 52
_SQRT_HALF_BITS: Final = 0x3FE6A09E667F3BCD
_LOG_2: Final = 0.6931471805599453
_ATANH_COEFFICIENTS: Final = tuple(1.0 / power for power in range(19, 0, -2))
"""1/19, 1/17, ..., 1/3, 1: the series of atanh(s) / s in s * s, highest power first."""

TorchWords = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
NumpyWord = npt.NDArray[np.uint64]
NumpyWords = tuple[NumpyWord, NumpyWord, NumpyWord, NumpyWord]


def philox4x32(counter: TorchWords, key: tuple[torch.Tensor, torch.Tensor]) -> TorchWords:
    """Run Philox4x32-10 on int64 tensors that hold 32-bit words.

    Args:
        counter: Four tensors of words in [0, 2**32), broadcast against each other and the key.
        key: Two tensors of words.

    Returns:
        Four int64 tensors of words in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # A 64-bit product wraps into the sign bit: its bits are right, so an arithmetic shift and
        # a mask give the high word. The low word waits for the next round's mask.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((product1 >> 32) ^ c1 ^ k0) & _LOW_WORD
        c2 = ((product0 >> 32) ^ c3 ^ k1) & _LOW_WORD
        c1, c3 = product1, product0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW_WORD, (k1 + _KEY_STEPS[1]) & _LOW_WORD
    return c0, c1 & _LOW_WORD, c2, c3 & _LOW_WORD


def philox4x32_numpy(counter: NumpyWords, key: tuple[NumpyWord, NumpyWord]) -> NumpyWords:
    """Run Philox4x32-10 on uint64 arrays that hold 32-bit words; see `philox4x32`."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    low_word, half = np.uint64(_LOW_WORD), np.uint64(32)
    multiplier0, multiplier1 = (np.uint64(value) for value in _MULTIPLIERS)
    step0, step1 = (np.uint64(value) for value in _KEY_STEPS)
    for _ in range(_NUM_ROUNDS):
        product0, product1 = c0 * multiplier0, c2 * multiplier1
        c0 = ((product1 >> half) ^ c1 ^ k0) & low_word
        c2 = ((product0 >> half) ^ c3 ^ k1) & low_word
        c1, c3 = product1, product0
        k0, k1 = (k0 + step0) & low_word, (k1 + step1) & low_word
    return c0, c1 & low_word, c2, c3 & low_word


def words_to_gumbel(words: torch.Tensor) -> torch.Tensor:
    """Turn int64 words in [0, 2**32) into float32 Gumbel noise of the same shape."""
    uniform = (words.to(torch.float64) + 0.5) * 2.0**-32
    return (-_log(-_log(1.0 - uniform))).to(torch.float32)


def words_to_gumbel_numpy(words: NumpyWord) -> npt.NDArray[np.float32]:
    """Turn uint64 words in [0, 2**32) into float32 Gumbel noise of the same shape."""
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-32
    return (-_log_numpy(-_log_numpy(1.0 - uniform))).astype(np.float32)


def gumbel_noise(
    seeds: torch.Tensor,
    samples: torch.Tensor,
    *,
    positions: torch.Tensor,
    vocab_start: int,
    vocab_size: int,
) -> torch.Tensor:
    """Draw the noise of one range of vocabulary ids for each row.

    Args:
        seeds: [n] int64, the bits of each row's 64-bit seed.
        samples: [n] int64 sample index of each row, below 2**32.
        positions: [n] int64 position of the token being sampled, below 2**32.
        vocab_start: First vocabulary id of the range (of a shard, say).
        vocab_size: Number of ids in the range.

    Returns:
        [n, vocab_size] float32 on the device of `seeds`.
    """
    first_group, last_group = _groups_of(vocab_start, vocab_size)
    groups = torch.arange(first_group, last_group, device=seeds.device)[None]  # [1, num_groups]
    seeds = seeds[:, None]  # [n, 1]
    counter = (groups, positions[:, None], samples[:, None], torch.zeros_like(seeds))
    words = philox4x32(counter, (seeds & _LOW_WORD, (seeds >> 32) & _LOW_WORD))
    noise = words_to_gumbel(torch.stack(words, dim=-1)).flatten(1)  # [n, num_groups * 4]
    skipped = vocab_start - first_group * NUM_WORDS
    return noise[:, skipped : skipped + vocab_size]


def gumbel_noise_numpy(
    seeds: npt.NDArray[np.uint64],
    samples: npt.NDArray[np.int64],
    *,
    positions: npt.NDArray[np.int64],
    vocab_start: int,
    vocab_size: int,
) -> npt.NDArray[np.float32]:
    """Draw the noise of one range of vocabulary ids for each row; see `gumbel_noise`."""
    first_group, last_group = _groups_of(vocab_start, vocab_size)
    groups = np.arange(first_group, last_group, dtype=np.uint64)[None]  # [1, num_groups]
    words = group_words_numpy(
        groups, seeds[:, None], samples=samples[:, None], positions=positions[:, None]
    )
    noise = words_to_gumbel_numpy(np.stack(words, axis=-1))  # [n, num_groups, 4]
    skipped = vocab_start - first_group * NUM_WORDS
    return noise.reshape(len(seeds), -1)[:, skipped : skipped + vocab_size]


def group_words_numpy(
    groups: NumpyWord,
    seeds: npt.NDArray[np.uint64],
    *,
    samples: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
) -> NumpyWords:
    """Compute the four words of groups of four vocabulary ids; all arguments broadcast.

    Args:
        groups: Vocabulary ids // 4.
        seeds: 64-bit seeds.
        samples: Sample indices.
        positions: Positions of the tokens being sampled.

    Returns:
        Word j holds the noise of vocabulary id 4 * group + j.
    """
    counter = (
        groups,
        positions.astype(np.uint64),
        samples.astype(np.uint64),
        np.zeros_like(seeds),
    )
    return philox4x32_numpy(counter, (seeds & np.uint64(_LOW_WORD), seeds >> np.uint64(32)))


def _groups_of(vocab_start: int, vocab_size: int) -> tuple[int, int]:
    return vocab_start // NUM_WORDS, -(-(vocab_start + vocab_size) // NUM_WORDS)


def _log(values: torch.Tensor) -> torch.Tensor:
    """Take the natural logarithm of positive normal float64 values to about 1e-15.

    The value is m * 2**e with m in [sqrt(1/2), sqrt(2)), so that log(m) = 2 * atanh(s) with
    s = (m - 1) / (m + 1) and |s| < 0.172. m - 1 is exact, hence so is the result's sign and scale
    near 1.
    """
    bits = values.contiguous().view(torch.int64)
    exponents = (bits - _SQRT_HALF_BITS) >> _MANTISSA_BITS
    mantissas = (bits - (exponents << _MANTISSA_BITS)).view(torch.float64)
    ratios = (mantissas - 1.0) / (mantissas + 1.0)
    squares = ratios * ratios
    series = torch.full_like(squares, _ATANH_COEFFICIENTS[0])
    for coefficient in _ATANH_COEFFICIENTS[1:]:
        series = series * squares + coefficient
    return exponents.to(torch.float64) * _LOG_2 + 2.0 * ratios * series


def _log_numpy(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Take the natural logarithm with the same operations, in the same order, as `_log`."""
    bits = np.ascontiguousarray(values).view(np.int64)
    exponents = (bits - _SQRT_HALF_BITS) >> _MANTISSA_BITS
    mantissas = (bits - (exponents << _MANTISSA_BITS)).view(np.float64)
    ratios = (mantissas - 1.0) / (mantissas + 1.0)
    squares = ratios * ratios
    series = np.full_like(squares, _ATANH_COEFFICIENTS[0])
    for coefficient in _ATANH_COEFFICIENTS[1:]:
        series = series * squares + coefficient
    return exponents.astype(np.float64) * _LOG_2 + 2.0 * ratios * series
