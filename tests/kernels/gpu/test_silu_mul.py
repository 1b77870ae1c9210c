"""The fused product against float64, at sizes that fill no tile."""

import pytest
import torch

from tests.kernels.gpu.dtypes import DTYPES

TOLERANCES = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
"""Relative: one rounding, and the exponential of fp32."""


@pytest.mark.parametrize("size", [1, 64, 100, 1024, 1536, 2500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_and_up_become_their_gated_product(
    device: torch.device, dtype: torch.dtype, size: int
) -> None:
    from nanobatch.kernels.gpu.silu_mul import silu_mul

    generator = torch.Generator().manual_seed(size)
    gate_up = (torch.randn(3, 2 * size, generator=generator) * 4).to(dtype).to(device)
    before = gate_up.clone()
    actual = silu_mul(gate_up)
    gate, up = gate_up.double().chunk(2, dim=-1)
    exact = gate * torch.sigmoid(gate) * up
    smallest_normal = torch.finfo(dtype).smallest_normal
    error = (actual.double() - exact).abs() / exact.abs().clamp(min=smallest_normal)
    assert actual.shape == (3, size)
    assert float(error.max()) <= 1.01 * TOLERANCES[dtype]
    assert torch.equal(gate_up, before)


@pytest.mark.filterwarnings("ignore:overflow")  # the interpreter's exponential; a GPU's is silent
def test_extreme_gates_neither_overflow_nor_vanish(device: torch.device) -> None:
    from nanobatch.kernels.gpu.silu_mul import silu_mul

    gate = torch.tensor([[-60000.0, -100.0, 0.0, 100.0, 60000.0]], device=device)
    actual = silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    assert actual.tolist() == [[0.0, pytest.approx(0.0, abs=1e-40), 0.0, 100.0, 60000.0]]


def test_a_poisoned_row_stays_alone_and_no_rows_are_none(device: torch.device) -> None:
    from nanobatch.kernels.gpu.silu_mul import silu_mul

    gate_up = torch.ones(3, 20, device=device)
    gate_up[1] = torch.nan
    actual = silu_mul(gate_up)
    assert bool(actual[1].isnan().all())
    assert not bool(actual[[0, 2]].isnan().any())
    assert silu_mul(torch.ones(0, 20, device=device)).shape == (0, 10)
