"""Copy small host arrays to the device without waiting for it.

On CUDA a copy goes through page-locked memory of torch's caching host allocator, which hands a
block out again only once an event behind the last copy from it has passed: nobody has to guard it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def staging_tensor(
    shape: Sequence[int], dtype: torch.dtype, *, device: torch.device
) -> torch.Tensor:
    """Return host memory, not initialised, from which one copy to `device` need not be waited for.

    Args:
        shape: Any.
        dtype: Any.
        device: Where the copy goes. The caller drops the tensor once the copy is queued.
    """
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=device.type == "cuda")


def copy_to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array of numbers to a new tensor, in order with the current stream.

    Args:
        array: Any shape, of a type that torch knows; it may be reused at once.
        device: Where the tensor is wanted.
    """
    host = staging_tensor(array.shape, torch_dtype(array), device=device)
    host.numpy()[...] = array
    return host.to(device, non_blocking=True)


def torch_dtype(array: npt.NDArray[Any]) -> torch.dtype:
    """Return the data type that a tensor of the array's numbers has."""
    return torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
