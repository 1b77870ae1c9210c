"""Functions of tensors, compiled for this processor and kept on disk for the next start.

torch's AOTInductor turns a function of plain torch operations into C++ loops and has the system's
compiler make a library of them. A call then costs a fifth of a `torch.compile` call, whose guards
run in Python, and a later start only opens the library.

Knows nothing of what the functions compute.
"""

import inspect
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final

import torch
import xxhash
from torch import nn

TensorFunction = Callable[..., tuple[torch.Tensor, ...]]

MAX_SIZE: Final = 1 << 40
"""Bound of every dimension that varies."""

INDUCTOR_OPTIONS: Final[Mapping[str, object]] = {
    "cpp.dynamic_threads": True,  # as many as torch has when called, not when compiled
    "cpp.enable_floating_point_contract_flag": "fast",  # a product and a sum may round once
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function and what it is compiled for.

    Attributes:
        function: Takes tensors, and `constants` by name; returns tensors. May write to its inputs.
        examples: Contiguous inputs, each a tensor of its own, since torch would take equal ones for
            one input. Sizes and data types are fixed but for what `varying` names.
        varying: Of each input the dimensions that vary, and a name; what has the same name has the
            same size.
        constants: Numbers that are compiled in.
    """

    function: TensorFunction
    examples: tuple[torch.Tensor, ...]
    varying: tuple[Mapping[int, str], ...]
    constants: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what would compile to something else."""
        assert len({example.data_ptr() for example in self.examples}) == len(self.examples)

    @property
    def key(self) -> str:
        """Name of the library: different for everything that makes another one."""
        inputs = [
            (str(example.dtype), [named.get(i, size) for i, size in enumerate(example.shape)])
            for example, named in zip(self.examples, self.varying, strict=True)
        ]
        source = Path(inspect.getfile(self.function)).read_bytes()
        made_for = (torch.__version__, processor(), INDUCTOR_OPTIONS)
        parts = (inputs, sorted(self.constants.items()), made_for)
        digest = xxhash.xxh3_128_hexdigest(repr(parts).encode() + source)
        return f"{self.function.__name__}-{digest}"


class CompiledFunction:
    """A function in a library. Checks neither shapes nor strides of what it is called with.

    Args:
        library: File that `compiled` made.
    """

    def __init__(self, library: Path) -> None:
        self._runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Return what the function returns for contiguous inputs, each a new tensor."""
        outputs: list[torch.Tensor] = self._runner.run(list(inputs))
        return outputs


def can_compile() -> bool:
    """Whether torch has a compiler to work with, and can open what it makes."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None and hasattr(torch._C, "_aoti")


def is_compiled(program: Program, folder: Path) -> bool:
    """Whether an earlier start has left the library."""
    return _library(program, folder).exists()


def compiled(program: Program, folder: Path) -> CompiledFunction:
    """Open a program's library, after compiling it where it is not there (about ten seconds).

    Raises:
        Exception: The compiler failed, or there is no place for the library. Which one depends on
            the part of torch that noticed.
    """
    library = _library(program, folder)
    if not library.exists():
        _compile(program, library)
    return CompiledFunction(library)


def library_folder() -> Path:
    """Return where libraries are kept: a folder of the user's cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "nanobatch" / "compiled"


@cache
def processor() -> str:
    """Return what a library depends on, as it is compiled for the very processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _library(program: Program, folder: Path) -> Path:
    return folder / f"{program.key}.so"


def _compile(program: Program, library: Path) -> None:
    """Compile elsewhere, then put the library in its place whole, whoever else does the same."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about itself
        made = Path(scratch) / library.name
        torch._inductor.aot_compile(
            _exported(program).module(),
            program.examples,
            options={**INDUCTOR_OPTIONS, "aot_inductor.output_path": str(made)},
        )
        with tempfile.NamedTemporaryFile(dir=library.parent, delete=False) as copy:
            shutil.copy(made, copy.name)
        Path(copy.name).replace(library)


def _exported(program: Program) -> torch.export.ExportedProgram:
    dims: dict[str, torch.export.Dim] = {}
    shapes = tuple(
        {
            index: dims.setdefault(name, torch.export.Dim(name, min=1, max=MAX_SIZE))
            for index, name in named.items()
        }
        for named in program.varying
    )
    with torch.inference_mode(False), torch.no_grad():
        return torch.export.export(
            _Module(partial(program.function, **program.constants)),
            program.examples,
            dynamic_shapes=(shapes,),
        )


class _Module(nn.Module):
    """What `torch.export` takes."""

    def __init__(self, function: TensorFunction) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the function."""
        return self._function(*inputs)
