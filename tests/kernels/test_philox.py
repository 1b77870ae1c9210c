import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobatch.kernels.philox import (
    MAX_GUMBEL_NOISE,
    gumbel_noise,
    gumbel_noise_numpy,
    philox4x32,
    philox4x32_numpy,
    words_to_gumbel,
    words_to_gumbel_numpy,
)

# Random123's kat_vectors: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
EDGE_WORDS = np.concatenate(
    [np.arange(5000), 2**32 - 1 - np.arange(5000), 2 ** np.arange(32), 2**31 + np.arange(-500, 500)]
).astype(np.uint64)


def torch_noise(
    seeds: list[int], samples: list[int], positions: list[int], start: int, size: int
) -> torch.Tensor:
    return gumbel_noise(
        torch.from_numpy(np.array(seeds, dtype=np.uint64).view(np.int64)),
        torch.tensor(samples),
        positions=torch.tensor(positions),
        vocab_start=start,
        vocab_size=size,
    )


def numpy_noise(
    seeds: list[int], samples: list[int], positions: list[int], start: int, size: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return gumbel_noise_numpy(
        np.array(seeds, dtype=np.uint64),
        np.array(samples),
        positions=np.array(positions),
        vocab_start=start,
        vocab_size=size,
    )


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_torch_philox_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    words = philox4x32((c0, c1, c2, c3), (torch.tensor([key[0]]), torch.tensor([key[1]])))
    assert tuple(int(word) for word in words) == expected


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_numpy_philox_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    c0, c1, c2, c3 = (np.array([word], dtype=np.uint64) for word in counter)
    k0, k1 = (np.array([word], dtype=np.uint64) for word in key)
    assert tuple(int(word[0]) for word in philox4x32_numpy((c0, c1, c2, c3), (k0, k1))) == expected


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
        min_size=1,
        max_size=4,
    ),
    start=st.integers(0, 300_000),
    size=st.integers(1, 300),
)
def test_torch_and_numpy_noise_are_equal_bit_for_bit(
    keys: list[tuple[int, int, int]], start: int, size: int
) -> None:
    seeds, samples, positions = (list(column) for column in zip(*keys, strict=True))
    from_torch = torch_noise(seeds, samples, positions, start, size)
    from_numpy = numpy_noise(seeds, samples, positions, start, size)
    assert from_torch.dtype == torch.float32
    assert np.array_equal(from_torch.numpy(), from_numpy)


def test_torch_and_numpy_turn_words_into_the_same_noise() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 300_000, dtype=np.uint64)
    words = np.concatenate([EDGE_WORDS, words])
    from_torch = words_to_gumbel(torch.from_numpy(words.view(np.int64)))
    assert np.array_equal(from_torch.numpy(), words_to_gumbel_numpy(words))


def test_noise_of_a_word_is_the_formula_rounded_to_float32() -> None:
    words = np.concatenate([EDGE_WORDS, np.arange(0, 2**32, 2**32 // 5000, dtype=np.uint64)])
    expected = [-math.log(-math.log1p(-(int(word) + 0.5) * 2.0**-32)) for word in words]
    assert words_to_gumbel_numpy(words).tolist() == np.array(expected, np.float32).tolist()


def test_noise_falls_as_words_rise_and_stays_below_its_bound() -> None:
    noise = words_to_gumbel_numpy(np.unique(EDGE_WORDS))
    assert np.all(np.diff(noise) <= 0)
    assert noise[0] == np.float32(33 * math.log(2))
    assert noise[0] < MAX_GUMBEL_NOISE
    assert np.isfinite(noise).all()


@pytest.mark.parametrize("bounds", [[0, 37, 100, 203], [0, 1, 2, 3, 203], [0, 64, 128, 203]])
def test_shards_of_the_vocabulary_draw_the_noise_of_the_whole(bounds: list[int]) -> None:
    keys = ([7, 2**63 + 1], [0, 3], [11, 4095])
    shards = [torch_noise(*keys, start, end - start) for start, end in itertools.pairwise(bounds)]
    assert torch.equal(torch.cat(shards, dim=1), torch_noise(*keys, 0, 203))


def test_every_part_of_the_key_changes_the_noise() -> None:
    seeds = [1, 2, 1 + 2**32, 1 + 2**63, 1, 1, 1]
    samples = [0, 0, 0, 0, 1, 0, 0]
    positions = [5, 5, 5, 5, 5, 6, 5]
    noise = numpy_noise(seeds, samples, positions, 0, 64)
    assert len(np.unique(noise[:6])) == 6 * 64
    assert np.array_equal(noise[0], noise[6])


def test_noise_is_gumbel_distributed() -> None:
    noise = numpy_noise(list(range(20)), [0] * 20, [3] * 20, 0, 20_000).astype(np.float64).ravel()
    uniform = np.sort(np.exp(-np.exp(-noise)))  # Gumbel's distribution function
    kolmogorov_distance = np.abs(uniform - (np.arange(noise.size) + 0.5) / noise.size).max()
    assert kolmogorov_distance < 1.95 / math.sqrt(noise.size)  # a false alarm in 1,000 keys
    pairs = noise.reshape(-1, 4) - noise.mean()  # the four words of a call
    correlation = np.corrcoef(pairs, rowvar=False) - np.eye(4)
    assert np.abs(correlation).max() < 0.015


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_draws_the_noise_of_the_cpu_bit_for_bit() -> None:
    seeds, samples, positions = torch.arange(8) * 2**61 + 5, torch.arange(8), torch.arange(8) * 999
    on_cpu = gumbel_noise(seeds, samples, positions=positions, vocab_start=3, vocab_size=150_000)
    on_cuda = gumbel_noise(
        seeds.cuda(), samples.cuda(), positions=positions.cuda(), vocab_start=3, vocab_size=150_000
    )
    assert torch.equal(on_cuda.cpu(), on_cpu)
