import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from nanobatch.kernels.torch_kernels import TorchKernels
from nanobatch.layers.norm import RMSNorm

CPU = torch.device("cpu")


def make_norm(dtype: torch.dtype, *, eps: float = 1e-5) -> RMSNorm:
    norm = RMSNorm(33, eps=eps, dtype=dtype, device=CPU, kernels=TorchKernels())
    norm.weight_slots()["weight"].store(torch.linspace(0.5, 2.0, 33))
    return norm


def random_hidden(dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(7, 33, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norm_equals_transformers_bit_for_bit(dtype: torch.dtype) -> None:
    norm = make_norm(dtype)
    reference = LlamaRMSNorm(33, eps=1e-5).to(dtype)
    reference.weight.data.copy_(norm.weight)
    hidden = random_hidden(dtype)
    assert torch.equal(norm.forward(hidden), reference(hidden))


def test_float64_is_normalised_in_float64() -> None:
    norm, hidden = make_norm(torch.float64), random_hidden(torch.float64)
    mean_square = (hidden**2).mean(-1, keepdim=True)
    expected = hidden / (mean_square + 1e-5).sqrt() * norm.weight
    assert float((norm.forward(hidden) - expected).abs().max()) < 1e-14


def test_norm_leaves_its_input_alone() -> None:
    hidden = random_hidden(torch.float32)
    before = hidden.clone()
    result = make_norm(torch.float32).forward(hidden)
    assert torch.equal(hidden, before)
    assert result.data_ptr() != hidden.data_ptr()


def test_a_row_of_zeros_stays_zero() -> None:
    result = make_norm(torch.float32, eps=1e-6).forward(torch.zeros(1, 33))
    assert torch.equal(result, torch.zeros(1, 33))
