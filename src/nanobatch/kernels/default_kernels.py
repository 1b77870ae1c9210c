"""Which kernel set a model gets where nobody says otherwise."""

from importlib.util import find_spec

import torch

from nanobatch.kernels.kernel_set import KernelSet
from nanobatch.kernels.torch_kernels import TorchKernels


def default_kernels(device: torch.device, dtype: torch.dtype) -> KernelSet:
    """Return fused kernels on a GPU with Triton, plain torch elsewhere and for float64."""
    is_fused = device.type == "cuda" and dtype != torch.float64 and find_spec("triton") is not None
    if not is_fused:
        return TorchKernels()
    from nanobatch.kernels.gpu.triton_kernels import TritonKernels  # triton is optional

    return TritonKernels()
