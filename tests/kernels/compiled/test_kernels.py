"""Which kernels a CPU gets."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nanobatch.kernels.compiled.compiler import can_compile
from nanobatch.kernels.compiled.kept_rows import keeper_of
from nanobatch.kernels.compiled.kernels import cpu_kernels
from nanobatch.kernels.compiled.programs import layer_programs
from nanobatch.kernels.torch_kernels import TorchKernels
from tests.kernels.compiled.sizes import layer_sizes, plain_kernels

BF16 = layer_sizes(dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_only_bfloat16_is_compiled(dtype: torch.dtype, tmp_path: Path) -> None:
    """Fp32 stays bit for bit what transformers computes."""
    kernels = cpu_kernels(replace(BF16, dtype=dtype), folder=tmp_path)
    assert type(kernels) is TorchKernels


def test_without_a_compiler_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.INFO):
        assert type(cpu_kernels(BF16, folder=tmp_path)) is TorchKernels
    assert "no C++ compiler" in caplog.text


@pytest.mark.skipif(not can_compile(), reason="no C++ compiler")
def test_where_no_library_can_be_written_nothing_is_compiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert type(cpu_kernels(BF16, folder=tmp_path / "file")) is TorchKernels
    assert caplog.records[-1].levelname == "WARNING"
    assert "compiling failed" in caplog.text


@pytest.mark.parametrize(("num_kv_heads", "is_compiled"), [(6, False), (2, True), (3, True)])
def test_attention_is_compiled_where_it_is_faster(num_kv_heads: int, is_compiled: bool) -> None:
    sizes = replace(BF16, num_kv_heads=num_kv_heads)
    assert ("attend_rows" in layer_programs(sizes)) == is_compiled
    assert (keeper_of(plain_kernels(sizes)) is not None) == is_compiled
