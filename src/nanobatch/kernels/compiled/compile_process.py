"""The process that compiles programs: `python -m nanobatch.kernels.compiled.compile_process FILE`.

torch's compiler takes some hundred megabytes and leaves as much on disk; both end with it.
"""

import os
import pickle
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import nn

from nanobatch.kernels.compiled.compiler import (
    INDUCTOR_OPTIONS,
    CompiledFunction,
    Program,
    TensorFunction,
    digest_of,
)

MAX_SIZE: Final = 1 << 40
"""Bound of every dimension that varies."""


def main() -> None:
    """Compile the programs that a file names with their libraries' places."""
    warnings.simplefilter("ignore")  # torch's own, about itself
    programs: list[tuple[Program, Path]] = pickle.loads(Path(sys.argv[1]).read_bytes())
    for program, library in programs:
        _put(_compiled(program), library)


def _compiled(program: Program) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch) / "library.so"
        torch._inductor.aot_compile(
            _exported(program).module(),
            program.examples,
            options={**INDUCTOR_OPTIONS, "aot_inductor.output_path": str(library)},
        )
        return library.read_bytes()


def _put(content: bytes, library: Path) -> None:
    """Write a library whole or not at all, whoever else does the same."""
    with tempfile.NamedTemporaryFile(dir=library.parent, delete=False) as file:
        try:
            file.write(content + digest_of(content))
            file.flush()
            os.fsync(file.fileno())
            CompiledFunction(Path(file.name))  # what cannot be opened ends this process only
            Path(file.name).replace(library)
        except OSError:
            Path(file.name).unlink()
            raise


def _exported(program: Program) -> torch.export.ExportedProgram:
    dims: dict[str, torch.export.Dim] = {}
    shapes = tuple(
        {
            index: dims.setdefault(name, torch.export.Dim(name, min=1, max=MAX_SIZE))
            for index, name in named.items()
        }
        for named in program.varying
    )
    with torch.no_grad():
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


if __name__ == "__main__":
    main()
