"""A compiled function is the function, for every size; its library is made once and found again."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nanobatch.kernels.compiled.compiler import Program, can_compile, compiled, is_compiled


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
def test_a_library_computes_the_function_for_every_size_and_is_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert not is_compiled(program(), folder)
    first = compiled(program(), folder)
    assert is_compiled(program(), folder)
    (library,) = folder.iterdir()  # and nothing else
    made_at = library.stat().st_mtime_ns
    for function in (first, compiled(program(), folder)):
        for num_rows in (1, 2, 3, 64, 1000):
            numbers = torch.randn(num_rows, 40).bfloat16()
            expected_sums, sums = torch.empty(num_rows), torch.empty(num_rows)
            (expected,) = scale_into(numbers, expected_sums, factor=1.5)
            (actual,) = function(numbers, sums)
            assert torch.equal(actual, expected)
            torch.testing.assert_close(sums, expected_sums)
    assert library.stat().st_mtime_ns == made_at


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
