"""Functions of tensors, compiled for this processor and kept on disk for the next start.

torch's AOTInductor turns a function of plain torch operations into C++ loops and has the system's
compiler make a library of them. A call then costs a fifth of a `torch.compile` call, whose guards
run in Python, and a later start only opens the library. A process of its own compiles: it can be
ended at any time and takes its memory and its files with it.

Knows nothing of what the functions compute.
"""

import inspect
import os
import pickle
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import torch
import xxhash

TensorFunction = Callable[..., tuple[torch.Tensor, ...]]

COMPILE_MODULE: Final = "nanobatch.kernels.compiled.compile_process"

CACHE_VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"
"""Where torch keeps what it has found out about the compiler and the processor (20 seconds)."""

FIRST_TORCH: Final = (2, 13)
"""Version that is known to open what it makes; 2.11 for CUDA 13 crashes in doing so."""

POLL_S: Final = 0.1

DIGEST_BYTES: Final = 16
"""At the end of a library's file, behind what its loader reads."""

INDUCTOR_OPTIONS: Final[Mapping[str, object]] = {
    "cpp.dynamic_threads": True,  # as many as torch has when called
    "cpp.threads": 2,  # what loops are cut for: over rows, whatever machine has compiled them
    "cpp.enable_floating_point_contract_flag": "fast",  # a product and a sum may round once
    "cpp_cache_precompile_headers": False,  # 300 MB, which a handful of functions do not pay for
}


class CompileError(RuntimeError):
    """A compiler failed."""


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
        library: File that `compile_programs` made.
    """

    def __init__(self, library: Path) -> None:
        self._runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Return what the function returns for contiguous inputs, each a new tensor."""
        outputs: list[torch.Tensor] = self._runner.run(list(inputs))
        return outputs


def compiler_name() -> str:
    """Return the C++ compiler that torch calls."""
    return os.environ.get("CXX") or "g++"


def can_compile() -> bool:
    """Whether torch has a compiler to work with, and can open what it makes."""
    version = tuple(int(number) for number in torch.__version__.split(".")[:2])
    can_open = hasattr(getattr(torch._C, "_aoti", None), "AOTIModelContainerRunnerCpu")
    return version >= FIRST_TORCH and can_open and shutil.which(compiler_name()) is not None


def is_compiled(program: Program, folder: Path) -> bool:
    """Whether an earlier start has left the library, whole."""
    try:
        content = library_of(program, folder).read_bytes()
    except OSError:
        return False
    return content[-DIGEST_BYTES:] == digest_of(content[:-DIGEST_BYTES])


def compiled(program: Program, folder: Path) -> CompiledFunction:
    """Open the library of a program that `is_compiled`.

    Raises:
        RuntimeError: It cannot be opened here.
    """
    return CompiledFunction(library_of(program, folder))


def compile_programs(
    programs: Iterable[Program], folder: Path, *, on_wait: Callable[[], None] | None = None
) -> None:
    """Compile those of some programs that are not (ten seconds each, and half a minute to begin).

    Args:
        programs: What to compile.
        folder: Where libraries are kept, created if missing.
        on_wait: Called several times a second; what it raises ends the compiling process.

    Raises:
        CompileError: The compiler failed.
        OSError: There is no place for a library.
    """
    missing = [
        (program, library_of(program, folder))
        for program in programs
        if not is_compiled(program, folder)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nanobatch-") as scratch:
        task, output = Path(scratch) / "programs.pickle", Path(scratch) / "output.txt"
        task.write_bytes(pickle.dumps(missing))
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", COMPILE_MODULE, str(task)],
                env=_environment(scratch),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
            _wait(process, on_wait)
        if process.returncode != 0:
            raise CompileError(_reason(output.read_text(errors="replace")))


def digest_of(content: bytes) -> bytes:
    """Return the last bytes of the file of a library with such a content."""
    return xxhash.xxh3_128_digest(content)


def library_of(program: Program, folder: Path) -> Path:
    """Return the file of a program's library."""
    return folder / f"{program.key}.so"


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


def _environment(scratch: str) -> dict[str, str]:
    """Return the environment of a process that imports what this one does and leaves nothing."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TMPDIR": scratch,
        CACHE_VARIABLE: os.environ.get(CACHE_VARIABLE, scratch),
    }


def _wait(process: subprocess.Popen[bytes], on_wait: Callable[[], None] | None) -> None:
    """Wait for a process; end it and those that it has started where waiting is ended."""
    try:
        while process.poll() is None:
            if on_wait is not None:
                on_wait()
            time.sleep(POLL_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _reason(output: str) -> str:
    """Return the line of a compiler's output that says what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if "error:" in line.lower()]
    return (named or lines[-1:] or ["no reason given"])[0]
