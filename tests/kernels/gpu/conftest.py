"""Kernels run on the GPU where there is one, else in Triton's interpreter on the CPU."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton


@pytest.fixture
def device() -> torch.device:
    """Return where the kernel under test runs."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
