"""Packed weights give the products of plain ones; where a processor cannot pack, tests skip."""

import pytest
import torch
from torch.nn.functional import silu

from nanobatch.kernels import cpu_matrix
from nanobatch.kernels.cpu_matrix import (
    PACKED_CHUNK,
    DenseHead,
    DenseMatrix,
    PrepackedGatedMatrix,
    PrepackedHead,
    PrepackedMatrix,
    pack_head,
    pack_matrix,
)
from nanobatch.kernels.kernel_set import HeadMatrix
from nanobatch.kernels.torch_kernels import TorchKernels

CAN_PREPACK = cpu_matrix.can_prepack(torch.empty(1, 1, dtype=torch.bfloat16))
needs_bfloat16_units = pytest.mark.skipif(not CAN_PREPACK, reason="no AMX or AVX-512 BF16")

KERNELS = TorchKernels()
SHAPES = [(64, 64), (70, 33), (1, 8), (PACKED_CHUNK + 3, 16)]


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@needs_bfloat16_units
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_tokens", [0, 1, 5, 130])
def test_a_packed_product_is_the_exact_one_rounded_once(
    shape: tuple[int, int], num_tokens: int
) -> None:
    weight, bias, hidden = random(*shape), random(shape[0]), random(num_tokens, shape[1])
    for each in (bias, None):
        exact = hidden.double() @ weight.double().T + (0 if each is None else each.double())
        actual = PrepackedMatrix(weight).product(hidden, each)
        assert (actual.dtype, actual.shape) == (torch.bfloat16, (num_tokens, shape[0]))
        assert bool(((actual - exact).abs() <= exact.abs() * 2**-8 + 1e-5).all())


@needs_bfloat16_units
@pytest.mark.parametrize("shape", [(64, 64), (66, 33), (2, 8)])
@pytest.mark.parametrize("num_tokens", [0, 1, 5, 130])
def test_a_packed_gate_is_silu_of_one_product_times_the_other(
    shape: tuple[int, int], num_tokens: int
) -> None:
    weight, bias, hidden = random(*shape), random(shape[0]), random(num_tokens, shape[1])
    for each in (bias, None):
        products = hidden.double() @ weight.double().T + (0 if each is None else each.double())
        gate, up = products.chunk(2, dim=1)
        exact = silu(gate) * up
        matrix = KERNELS.pack_gated_matrix(weight)
        assert isinstance(matrix, PrepackedGatedMatrix)
        actual = matrix.product(hidden, each)
        assert (actual.dtype, actual.shape) == (torch.bfloat16, (num_tokens, shape[0] // 2))
        assert bool(((actual - exact).abs() <= exact.abs() * 2**-7 + 1e-4).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_plain_gate_is_silu_of_one_product_times_the_other(dtype: torch.dtype) -> None:
    weight, bias = random(40, 16, dtype=dtype), random(40, dtype=dtype)
    hidden = random(3, 16, dtype=dtype)
    gate, up = (hidden @ weight.T + bias).chunk(2, dim=1)
    actual = KERNELS.pack_gated_matrix(weight).product(hidden, bias)
    assert torch.allclose(actual, silu(gate) * up, rtol=1e-5, atol=1e-5)


@needs_bfloat16_units
def test_a_packed_product_takes_strided_rows() -> None:
    weight, wide = random(70, 32), random(5, 96)
    strided = wide[:, 32:64]
    matrix = PrepackedMatrix(weight)
    assert torch.equal(matrix.product(strided, None), matrix.product(strided.contiguous(), None))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_tokens", [0, 1, 7])
@pytest.mark.parametrize(
    "make_head", [DenseHead, pytest.param(PrepackedHead, marks=needs_bfloat16_units)]
)
def test_bfloat16_logits_are_far_finer_than_bfloat16(
    make_head: type[DenseHead | PrepackedHead], shape: tuple[int, int], num_tokens: int
) -> None:
    weight, hidden = random(*shape), random(num_tokens, shape[1])
    exact = hidden.double() @ weight.double().T
    logits = make_head(weight).logits(hidden)
    assert (logits.dtype, logits.shape) == (torch.float32, (num_tokens, shape[0]))
    assert bool(((logits - exact).abs() <= exact.abs() * 2**-17 + 1e-5).all())


@needs_bfloat16_units
def test_a_broken_row_leaves_the_logits_of_others_alone() -> None:
    weight, hidden = random(100, 32), random(3, 32)
    head = PrepackedHead(weight)
    expected = head.logits(hidden)
    hidden[1, 5] = torch.nan
    actual = head.logits(hidden)
    assert bool(actual[1].isnan().all())
    assert torch.equal(actual[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_other_data_types_keep_the_plain_weight(dtype: torch.dtype) -> None:
    weight, hidden = random(40, 16, dtype=dtype), random(3, 16, dtype=dtype)
    matrix, head = pack_matrix(weight), pack_head(weight)
    assert isinstance(matrix, DenseMatrix)
    assert isinstance(head, DenseHead)
    assert head.num_packed_bytes == 0
    exact = hidden.double() @ weight.double().T
    assert torch.allclose(matrix.product(hidden, None).double(), exact, rtol=2e-3, atol=2e-2)
    assert torch.allclose(head.logits(hidden).double(), exact, rtol=1e-5, atol=1e-4)


@needs_bfloat16_units
def test_a_packed_head_counts_its_bytes() -> None:
    head: HeadMatrix = pack_head(random(40, 16))
    assert head.num_packed_bytes == 40 * 16 * 2
