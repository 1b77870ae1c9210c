"""Functions that are compiled give, uncompiled, what the reference operations give."""

import pytest
import torch

from nanobatch.kernels.kernel_set import HeadNorms
from nanobatch.kernels.torch_kernels import TorchKernels
from tests.kernels.compiled.sizes import layer_sizes, plain_kernels

REFERENCE = TorchKernels()


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("num_tokens", [1, 37])
def test_sum_and_norm_are_each_rounded_once(num_tokens: int) -> None:
    sizes = layer_sizes(dtype=torch.bfloat16)
    hidden, residual = (
        random(num_tokens, sizes.hidden_size, dtype=sizes.dtype, seed=seed) for seed in (0, 1)
    )
    weight = random(sizes.hidden_size, dtype=sizes.dtype, seed=2)
    normalised, total = plain_kernels(sizes).add_rms_norm(
        hidden, residual.clone(), weight, eps=sizes.eps
    )
    assert torch.equal(total, hidden + residual)
    exact = REFERENCE.rms_norm(total.double(), weight.double(), eps=sizes.eps)
    error = (normalised.double() - exact).abs() / exact.abs().clamp_min(1e-3)
    assert float(error.max()) <= 2**-8


@pytest.mark.parametrize("has_head_norms", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 19])
def test_heads_are_rotated_and_stored_like_the_reference(
    num_tokens: int, has_head_norms: bool
) -> None:
    sizes = layer_sizes(dtype=torch.float32, has_head_norms=has_head_norms)
    num_heads = sizes.num_heads + 2 * sizes.num_kv_heads
    qkv, angles = random(num_tokens, num_heads * sizes.head_dim), random(num_tokens, 4, seed=1)
    norms = HeadNorms(
        query_weight=random(sizes.head_dim, seed=2),
        key_weight=random(sizes.head_dim, seed=3),
        eps=sizes.eps,
    )
    pools = torch.full((2, 2, 5, 4, sizes.num_kv_heads, sizes.head_dim), torch.nan)
    results = [
        kernels.rotate_and_store(
            qkv.clone(),
            (angles.cos(), angles.sin()),
            norms=norms if has_head_norms else None,
            num_heads=sizes.num_heads,
            slot_mapping=torch.randperm(20, generator=torch.Generator().manual_seed(4))[
                :num_tokens
            ],
            key_cache=keys,
            value_cache=values,
        )
        for kernels, (keys, values) in zip((plain_kernels(sizes), REFERENCE), pools, strict=True)
    ]
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)
    assert int(pools[0].isfinite().sum()) == 2 * num_tokens * sizes.num_kv_heads * sizes.head_dim
    torch.testing.assert_close(pools[0], pools[1], equal_nan=True)


def test_a_token_without_a_slot_is_not_stored() -> None:
    sizes = layer_sizes(dtype=torch.float32)
    pools = torch.full((2, 2, 2, sizes.num_kv_heads, sizes.head_dim), torch.nan)
    _, key, value = plain_kernels(sizes).rotate_and_store(
        random(3, 80),
        (random(3, 4), random(3, 4)),
        norms=None,
        num_heads=sizes.num_heads,
        slot_mapping=torch.tensor([3, -1, 0]),
        key_cache=pools[0],
        value_cache=pools[1],
    )
    for pool, stored in zip(pools.flatten(1, 2), (key, value), strict=True):
        assert torch.equal(pool[[3, 0]], stored[[0, 2]])
        assert bool(pool[[1, 2]].isnan().all())
