"""Runs the program, in this process or in one of its own, and keeps what it printed."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nanobatch.cli.app import main

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run of the program ended.

    Attributes:
        code: Exit code.
        out: Standard output, as bytes because it is data.
        err: Standard error.
    """

    code: int
    out: bytes
    err: str

    @property
    def error_and_hint(self) -> tuple[str, str]:
        """The two lines of a refusal; there must be nothing else."""
        assert self.out == b""
        lines = self.err.splitlines()
        assert len(lines) == 2, self.err
        assert [line.partition(": ")[0] for line in lines] == ["error", "hint"]
        return lines[0].partition(": ")[2], lines[1].partition(": ")[2]


class Program:
    """`nanobatch` without the cost of a process."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str | Path) -> Ended:
        """Run the program with these arguments."""
        self._capture.readouterr()
        with pytest.raises(SystemExit) as exited:
            main([str(argument) for argument in arguments])
        printed = self._capture.readouterr()
        assert isinstance(exited.value.code, int)
        return Ended(code=exited.value.code, out=printed.out, err=printed.err.decode())


def start(
    *arguments: str | Path, module: str = "nanobatch", **variables: str
) -> "subprocess.Popen[bytes]":
    """Start the program in a process of its own, with both outputs piped.

    Args:
        *arguments: Its arguments.
        module: What to run; `tests.null_program` is the program on the null model.
        **variables: Environment variables to set for it.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(), **variables},
    )


def environment() -> dict[str, str]:
    """Return this process's environment for the program in a process of its own."""
    paths = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def wait(process: "subprocess.Popen[bytes]") -> Ended:
    """Wait for a process; its code is negative for the signal that it died of."""
    out, err = process.communicate(timeout=TIMEOUT_S)
    return Ended(code=process.returncode, out=out, err=err.decode())
