"""Kernels run on the GPU where there is one, else in Triton's interpreter on the CPU."""

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count these tests among those of the GPU where they run on one."""
    if torch.cuda.is_available():
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.gpu)


@pytest.fixture
def device() -> torch.device:
    """Return where the kernel under test runs."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
