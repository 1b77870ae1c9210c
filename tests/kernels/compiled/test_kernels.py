"""Which kernels a CPU gets."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nanobatch.kernels.compiled.compiler import can_compile
from nanobatch.kernels.compiled.kernels import cpu_kernels
from nanobatch.kernels.compiled.programs import layer_programs
from nanobatch.kernels.torch_kernels import TorchKernels
from tests.kernels.compiled.sizes import layer_sizes

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


@pytest.mark.skipif(not can_compile(), reason="no C++ compiler")
def test_a_damaged_library_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for program in layer_programs(BF16).values():
        (tmp_path / f"{program.key}.so").write_bytes(b"not a library")
    assert type(cpu_kernels(BF16, folder=tmp_path)) is TorchKernels
    assert "compiling failed" in caplog.text
