"""Carries a step's small arrays to the device in one copy.

A copy of a few kilobytes costs the host as much as one of a megabyte, so arrays are laid one
after the other in one block of host memory and split into views on the device. Knows nothing of
what the arrays mean.
"""

import numpy as np
import numpy.typing as npt
import torch

from nanobatch.kernels.host_copy import staging_tensor, torch_dtype

ALIGNMENT_BYTES = 128
"""Every array begins at a multiple of this, so that kernels may read it in vectors."""


class PackedUpload:
    """Uploads several arrays at once, without waiting for the device.

    What is uploaded belongs to the caller.

    Args:
        device: Where arrays go; on CPU they are only copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def device(self) -> torch.device:
        """Where arrays go."""
        return self._device

    def upload(self, *arrays: npt.NDArray[np.generic]) -> tuple[torch.Tensor, ...]:
        """Copy arrays to the device, in the order of the current stream.

        Args:
            arrays: Arrays of any dtype that torch has; they may be changed after the call.

        Returns:
            A tensor like each array; all are views of one allocation.
        """
        starts, num_bytes = _layout(arrays)
        staging = staging_tensor((num_bytes,), torch.uint8, device=self._device)
        host_bytes = staging.numpy()
        for array, start in zip(arrays, starts, strict=True):
            host_bytes[start : start + array.nbytes].view(array.dtype)[:] = array.ravel()
        packed = staging.to(self._device, non_blocking=True)
        return tuple(
            packed[start : start + array.nbytes].view(torch_dtype(array)).view(array.shape)
            for array, start in zip(arrays, starts, strict=True)
        )


def _layout(arrays: tuple[npt.NDArray[np.generic], ...]) -> tuple[list[int], int]:
    """Return where each array starts, and the bytes of all; never 0."""
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return starts, max(end, ALIGNMENT_BYTES)
