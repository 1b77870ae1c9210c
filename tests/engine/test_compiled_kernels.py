"""What is compiled for a processor computes what it was compiled from, and as precisely."""

from pathlib import Path

import pytest
import torch

from nanobatch.kernels.compiled.compiler import CACHE_VARIABLE, can_compile
from nanobatch.kernels.compiled.kept_rows import KeptRowsAttention
from nanobatch.kernels.compiled.kernels import CompiledKernels, cpu_kernels
from nanobatch.kernels.compiled.programs import LayerSizes, layer_programs
from nanobatch.models.source import read_model_config, resolve_model
from tests.checkpoints import write_checkpoint
from tests.engine.precision import SIZES, errors_of_bfloat16
from tests.kernels.compiled.sizes import plain_operations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_compile(), reason="no C++ compiler"),
]


@pytest.fixture(autouse=True)
def library_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep libraries where all processes of a test run find them."""
    folder = tmp_path_factory.getbasetemp().parent
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv(CACHE_VARIABLE, str(folder / "torchinductor"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", **SIZES)


def test_bfloat16_errs_no_more_than_transformers(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_attended = 0
    attend = KeptRowsAttention.attend

    def counted(self: KeptRowsAttention, *tensors: torch.Tensor, **options: object) -> torch.Tensor:
        nonlocal num_attended
        num_attended += 1
        return attend(self, *tensors, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(KeptRowsAttention, "attend", counted)
    error, their_error = errors_of_bfloat16(checkpoint, "cpu")
    assert num_attended > 100, "the case proves less"
    assert 0 < error <= 1.5 * their_error


def test_compiled_operations_compute_what_uncompiled_ones_do(checkpoint: Path) -> None:
    sizes = LayerSizes.of(read_model_config(resolve_model(str(checkpoint))), torch.bfloat16)
    kernels = cpu_kernels(sizes)
    assert isinstance(kernels, CompiledKernels)
    plain = plain_operations(sizes)
    for num_rows in (1, 2, 33):
        for name, inputs in inputs_of(sizes, num_rows).items():
            copies = [tensor.clone() for tensor in inputs]
            expected, actual = (
                getattr(plain, name)(*inputs),
                getattr(kernels.operations, name)(*copies),
            )
            for ours, theirs in zip((*actual, *copies), (*expected, *inputs), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=1e-3, equal_nan=True)


def inputs_of(sizes: LayerSizes, num_rows: int) -> dict[str, list[torch.Tensor]]:
    """Return random inputs of every operation, of the sizes of its examples but for what varies."""
    varied = {"num_tokens": num_rows, "num_rows": num_rows, "num_slots": 50, "capacity": 4}
    varied["num_blocks"] = 3
    generator = torch.Generator().manual_seed(num_rows)
    inputs = {}
    for name, program in layer_programs(sizes).items():
        inputs[name] = [
            torch.randn(
                [varied[named[i]] if i in named else size for i, size in enumerate(example.shape)],
                generator=generator,
            ).to(example.dtype)
            for example, named in zip(program.examples, program.varying, strict=True)
        ]
    rotate, attend = inputs["rotate_and_store"], inputs["attend_rows"]
    rotate[3] = torch.randperm(50, generator=generator)[:num_rows]
    attend[5] = torch.stack(
        [torch.randint(0, size, (num_rows,), generator=generator) for size in (3, 32)]
    )
    attend[6] = torch.zeros_like(attend[6])
    attend[6][:, 2, 20:] = -torch.inf
    attend[8][0] = -torch.inf  # the first row shares nothing
    return inputs
