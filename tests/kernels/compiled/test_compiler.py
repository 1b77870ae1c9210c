"""A compiled function is the function, for every size; its library is made once and found again."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nanobatch.kernels.compiled.compiler import (
    CACHE_VARIABLE,
    CompileError,
    Program,
    can_compile,
    compile_programs,
    compiled,
    digest_of,
    is_compiled,
    library_of,
)


def scale_into(
    numbers: torch.Tensor, sums: torch.Tensor, *, factor: float
) -> tuple[torch.Tensor, ...]:
    """Add up rows of scaled numbers, and write the sums to a tensor of the caller's."""
    scaled = numbers.float() * factor
    sums[:] = scaled.sum(1)
    return (scaled.to(numbers.dtype),)


ROWS = {0: "num_rows"}


def program(num_columns: int = 40, **changes: Any) -> Program:
    made = Program(
        function=scale_into,
        examples=(torch.zeros(3, num_columns, dtype=torch.bfloat16), torch.zeros(3)),
        varying=(ROWS, ROWS),
        constants={"factor": 1.5},
    )
    return replace(made, **changes)


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="no C++ compiler")
def test_a_library_computes_the_function_for_every_size_and_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path.parent.parent / "torchinductor"))
    folder = tmp_path / "new" / "folder"
    assert not is_compiled(program(), folder)
    compile_programs([program()], folder)
    assert is_compiled(program(), folder)
    (library,) = folder.iterdir()  # and nothing else
    made_at = library.stat().st_mtime_ns
    compile_programs([program()], folder)
    assert library.stat().st_mtime_ns == made_at
    function = compiled(program(), folder)
    for num_rows in (1, 2, 3, 64, 1000):
        numbers = torch.randn(num_rows, 40).bfloat16()
        expected_sums, sums = torch.empty(num_rows), torch.empty(num_rows)
        (expected,) = scale_into(numbers, expected_sums, factor=1.5)
        (actual,) = function(numbers, sums)
        assert torch.equal(actual, expected)
        torch.testing.assert_close(sums, expected_sums)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_library_that_is_not_whole_is_no_library(tmp_path: Path, share: float) -> None:
    """It would end the process when it is opened."""
    content = bytes(range(256)) * 100
    library = library_of(program(), tmp_path)
    library.write_bytes(content + digest_of(content))
    assert is_compiled(program(), tmp_path)
    library.write_bytes(library.read_bytes()[: int(share * len(content))])
    assert not is_compiled(program(), tmp_path)
    library.write_bytes(content[:-9] + bytes(9) + digest_of(content))
    assert not is_compiled(program(), tmp_path)


class InterruptedWaitError(Exception):
    pass


@pytest.mark.skipif(not can_compile(), reason="no C++ compiler")
def test_waiting_can_be_ended_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scratch = tmp_path / "libraries", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    num_waits = 0

    def on_wait() -> None:
        nonlocal num_waits
        num_waits += 1
        if num_waits == 20:
            raise InterruptedWaitError

    with pytest.raises(InterruptedWaitError):
        compile_programs([program()], folder, on_wait=on_wait)
    assert list(folder.iterdir()) == []
    assert list(scratch.iterdir()) == []


@pytest.mark.skipif(not can_compile(), reason="no C++ compiler")
def test_what_the_compiler_says_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'broken: error: no headers' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CompileError, match="rror"):
        compile_programs([program()], tmp_path / "libraries")


@pytest.mark.parametrize(
    "changes",
    [
        {"constants": {"factor": 1.25}},
        {"num_columns": 41},
        {"examples": (torch.zeros(3, 40), torch.zeros(3))},
        {"varying": (ROWS, {})},
    ],
)
def test_whatever_changes_the_code_changes_the_name(changes: Mapping[str, Any]) -> None:
    assert program(**changes).key != program().key
    assert program(**changes).key == program(**changes).key


def test_the_size_of_what_varies_is_not_part_of_the_name() -> None:
    more = (torch.zeros(7, 40, dtype=torch.bfloat16), torch.zeros(7))
    assert program(examples=more).key == program().key


def test_one_tensor_cannot_be_an_example_of_two_inputs() -> None:
    shared = torch.zeros(3)
    with pytest.raises(AssertionError):
        program(examples=(shared, shared))
