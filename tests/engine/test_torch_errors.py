"""What fails on a device ends a job with one line, whoever raised it."""

import pytest
import torch
from triton.runtime.errors import OutOfResources

from nanobatch.engine.torch_errors import release_cached_memory, torch_errors
from nanobatch.errors import EngineError


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: no\nmore"), OutOfResources(200, 100, "shared memory")]
)
def test_errors_of_torch_and_triton_become_one_line(error: Exception) -> None:
    raised = pytest.raises(EngineError, match=f"^a step failed: {str(error)[:13]}[^\n]*$")
    with raised, torch_errors("a step", hint="try again"):
        raise error


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), torch_errors("a step", hint="try again"):
        raise KeyError("bug")


def test_a_device_that_failed_can_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a CUDA error every call fails, and engines are closed while the error is told."""

    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", fail)
    release_cached_memory()
