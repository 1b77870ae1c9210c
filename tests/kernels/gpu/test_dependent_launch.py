"""Kernels that start early give the same bits as kernels that wait for their predecessor's end."""

import pytest
import torch

from nanobatch.kernels.gpu import dependent_launch
from nanobatch.kernels.gpu.dependent_launch import early_start
from nanobatch.kernels.gpu.norm import add_rms_norm, rms_norm
from nanobatch.kernels.gpu.silu_mul import silu_mul


def test_kernels_without_a_gpu_are_launched_normally() -> None:
    assert early_start(torch.device("cpu")) == {"STARTS_EARLY": False}


@pytest.mark.gpu
def test_a_chain_of_kernels_in_a_graph_gives_the_same_bits_as_launched_normally(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 1024, generator=generator).to(device, torch.bfloat16)
    weight = torch.randn(1024, generator=generator).to(device, torch.bfloat16)

    def chain() -> torch.Tensor:
        residual = hidden.clone()
        out = rms_norm(hidden, weight, eps=1e-6)
        for _ in range(20):
            out, residual = add_rms_norm(out, residual, weight, eps=1e-6)
            out = silu_mul(torch.cat([out, residual], dim=1))  # torch's kernel in between
            out, residual = add_rms_norm(out, residual, weight, eps=1e-6)
        return out

    with monkeypatch.context() as normal:
        normal.setattr(dependent_launch, "can_start_early", lambda device: False)
        expected = chain()
    chain()  # compiled before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = chain()
    for _ in range(30):
        actual.zero_()
        graph.replay()
        assert torch.equal(actual, expected)
