"""The fused norms against float64, at sizes that fill no tile."""

import pytest
import torch

from tests.kernels.gpu.dtypes import DTYPES

TOLERANCES = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
"""Relative: two roundings in half precision, the sums of fp32."""

EPS = 1e-5
SIZES = [64, 100, 576, 1024, 1537, 4096]


def random_rows(num_rows: int, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size + num_rows)
    return (torch.randn(num_rows, size, generator=generator) * 3).to(dtype).to(device)


def exact_norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = hidden.double()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()


def assert_close(actual: torch.Tensor, exact: torch.Tensor) -> None:
    error = (actual.double() - exact).abs() / exact.abs().clamp(min=1e-3)
    assert float(error.max()) <= TOLERANCES[actual.dtype]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_normalised(device: torch.device, dtype: torch.dtype, size: int) -> None:
    from nanobatch.kernels.gpu.norm import rms_norm

    hidden, weight = random_rows(3, size, dtype, device), random_rows(1, size, dtype, device)[0]
    before = hidden.clone()
    assert_close(rms_norm(hidden, weight, eps=EPS), exact_norm(hidden, weight))
    assert torch.equal(hidden, before)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rounded_sum_is_kept_and_normalised(
    device: torch.device, dtype: torch.dtype, size: int
) -> None:
    from nanobatch.kernels.gpu.norm import add_rms_norm

    hidden, weight = random_rows(3, size, dtype, device), random_rows(1, size, dtype, device)[0]
    residual = random_rows(4, size, dtype, device)[:3]
    expected = hidden + residual
    normalised, total = add_rms_norm(hidden, residual, weight, eps=EPS)
    assert torch.equal(total, expected)
    assert total.data_ptr() == residual.data_ptr()
    assert_close(normalised, exact_norm(expected, weight))


def test_a_poisoned_row_stays_alone(device: torch.device) -> None:
    from nanobatch.kernels.gpu.norm import add_rms_norm

    hidden = random_rows(4, 100, torch.float16, device)
    residual, weight = torch.zeros_like(hidden), torch.ones_like(hidden[0])
    clean, _ = add_rms_norm(hidden, residual.clone(), weight, eps=EPS)
    residual[1] = torch.nan
    normalised, _ = add_rms_norm(hidden, residual, weight, eps=EPS)
    assert bool(normalised[1].isnan().all())
    kept = [0, 2, 3]
    assert torch.equal(normalised[kept], clean[kept])


def test_no_rows_and_rows_of_zeros(device: torch.device) -> None:
    from nanobatch.kernels.gpu.norm import add_rms_norm, rms_norm

    weight = torch.ones(64, device=device)
    assert rms_norm(torch.zeros(0, 64, device=device), weight, eps=EPS).shape == (0, 64)
    zeros = torch.zeros(2, 64, device=device)
    normalised, total = add_rms_norm(zeros, zeros.clone(), weight, eps=EPS)
    assert torch.equal(normalised, zeros)
    assert torch.equal(total, zeros)
