"""Noise in kernels: the bits of the numpy twin, and an approximation within its bound."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
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
from nanobatch.kernels.philox import group_words_numpy, words_to_gumbel_numpy

BLOCK = 4096


def compute_noise(
    words_ptr: "Any",
    exact_ptr: "Any",
    approximate_ptr: "Any",
    bound_ptr: "Any",
    num_words: "Any",
    block: tl.constexpr,
) -> None:
    places = tl.program_id(0) * block + tl.arange(0, block)
    is_word = places < num_words
    words = tl.load(words_ptr + places, mask=is_word, other=1).to(tl.uint32, bitcast=True)
    tl.store(exact_ptr + places, exact_gumbel(words), mask=is_word)
    tl.store(approximate_ptr + places, approximate_gumbel(words), mask=is_word)
    tl.store(bound_ptr + places, gumbel_bound(words), mask=is_word)


def compute_words(words_ptr: "Any", key_ptr: "Any", num_groups: tl.constexpr) -> None:
    groups = tl.arange(0, num_groups)
    words = philox_words(
        groups.to(tl.uint32),
        tl.load(key_ptr).to(tl.uint32, bitcast=True),
        tl.load(key_ptr + 1).to(tl.uint32, bitcast=True),
        tl.load(key_ptr + 2).to(tl.uint32, bitcast=True),
        tl.load(key_ptr + 3).to(tl.uint32, bitcast=True),
    )
    for word in tl.static_range(4):
        tl.store(words_ptr + groups * 4 + word, words[word])


noise_kernel, words_kernel = triton.jit(compute_noise), triton.jit(compute_words)


def edge_and_random_words() -> npt.NDArray[np.uint64]:
    random = np.random.default_rng(0)
    edges = [np.arange(2000), 2**32 - 1 - np.arange(2000)]
    edges += [2**power + np.arange(-40, 40) for power in range(7, 32)]
    small = (2.0 ** random.uniform(0, 32, 20_000)).astype(np.int64)
    words = np.concatenate([*edges, small, 2**32 - 1 - small, random.integers(0, 2**32, 20_000)])
    return words.clip(0, 2**32 - 1).astype(np.uint64)


def int32_bits(words: npt.NDArray[np.integer[Any]], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(words.astype(np.uint32).view(np.int32)).to(device)


def test_exact_noise_is_the_numpy_twins_bit_for_bit(device: torch.device) -> None:
    words = edge_and_random_words()
    exact, approximate, bound = (
        torch.full((len(words),), torch.nan, device=device) for _ in range(3)
    )
    noise_kernel[(triton.cdiv(len(words), BLOCK),)](
        int32_bits(words, device),
        exact,
        approximate,
        bound,
        len(words),
        block=BLOCK,
        enable_fp_fusion=False,
    )
    expected = torch.from_numpy(words_to_gumbel_numpy(words)).to(device)
    assert torch.equal(exact, expected)
    assert float((approximate.double() - expected.double()).abs().max()) < NOISE_ERROR.value
    assert bool((bound >= expected).all())
    assert bool((bound - expected)[expected > 2.0].max() < 0.1)  # a bound that prunes
    assert float(expected.max()) < MAX_NOISE.value


def test_words_are_those_of_the_reference(device: torch.device) -> None:
    key = np.array([77, 2**32 - 1, 0xDEADBEEF, 0x92345678])  # position, sample, seed
    words = torch.zeros(64, 4, dtype=torch.int32, device=device)
    words_kernel[(1,)](words, int32_bits(key, device), num_groups=64)
    expected = group_words_numpy(
        np.arange(64, dtype=np.uint64),
        np.array([0x92345678DEADBEEF], dtype=np.uint64),
        samples=key[1:2],
        positions=key[:1],
    )
    assert torch.equal(words.cpu(), int32_bits(np.stack(expected, -1), torch.device("cpu")))
