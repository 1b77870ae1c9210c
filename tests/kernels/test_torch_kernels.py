"""The reference operations: exact where they promise it, and precise in half precision."""

import pytest
import torch

from nanobatch.kernels.default_kernels import default_kernels
from nanobatch.kernels.kernel_set import HeadNorms
from nanobatch.kernels.torch_kernels import TorchKernels, rotate

KERNELS = TorchKernels()


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_adding_first_is_the_same_as_adding_inside(dtype: torch.dtype) -> None:
    hidden, residual = random(5, 33, dtype=dtype), random(5, 33, dtype=dtype, seed=1)
    weight = random(33, dtype=dtype, seed=2)
    total = hidden + residual
    expected = KERNELS.rms_norm(total, weight, eps=1e-5)
    normalised, kept = KERNELS.add_rms_norm(hidden, residual, weight, eps=1e-5)
    assert torch.equal(kept, total)
    assert torch.equal(normalised, expected)


def test_the_first_half_is_the_gate() -> None:
    gate_up = torch.tensor([[0.0, 100.0, 7.0, 3.0]])
    assert KERNELS.silu_mul(gate_up).tolist() == [[0.0, 300.0]]


def test_half_precision_is_rotated_with_one_rounding() -> None:
    heads, angles = random(9, 3, 16, dtype=torch.bfloat16), random(9, 8, seed=1)
    exact = rotate(heads.double(), angles.cos().double(), angles.sin().double())
    rotated = rotate(heads, angles.cos(), angles.sin())
    assert rotated.dtype == torch.bfloat16
    assert torch.equal(rotated, exact.float().bfloat16())


@pytest.mark.parametrize("has_norms", [True, False])
def test_only_tokens_with_a_slot_are_stored(has_norms: bool) -> None:
    qkv = random(3, 4 * 8)
    angles = random(3, 4, seed=1)
    norms = HeadNorms(query_weight=random(8), key_weight=random(8, seed=1), eps=1e-6)
    pools = torch.full((2, 2, 2, 1, 8), torch.nan)  # keys and values, two blocks of two
    query, key, value = KERNELS.rotate_and_store(
        qkv,
        (angles.cos(), angles.sin()),
        norms=norms if has_norms else None,
        num_heads=2,
        slot_mapping=torch.tensor([3, -1, 0]),
        key_cache=pools[0],
        value_cache=pools[1],
    )
    assert query.shape == (3, 2, 8)
    assert torch.equal(pools[0].flatten(0, 1)[[3, 0]], key[[0, 2]])
    assert torch.equal(pools[1].flatten(0, 1)[[3, 0]], value[[0, 2]])
    assert bool(pools.flatten(1, 2)[:, [1, 2]].isnan().all())


def test_a_packed_matrix_multiplies_like_the_matrix() -> None:
    weight, hidden, bias = random(6, 5), random(3, 5, seed=1), random(6, seed=2)
    matrix = KERNELS.pack_matrix(weight)
    assert torch.allclose(matrix.product(hidden, None), hidden @ weight.T)
    assert torch.allclose(matrix.product(hidden, bias), hidden @ weight.T + bias)


def test_a_cpu_and_float64_get_plain_torch() -> None:
    assert isinstance(default_kernels(torch.device("cpu"), torch.bfloat16), TorchKernels)
    assert isinstance(default_kernels(torch.device("cuda"), torch.float64), TorchKernels)
