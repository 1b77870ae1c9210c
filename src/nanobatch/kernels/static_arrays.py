"""Integer arrays at fixed places on the device, all filled by one copy.

A CUDA graph reads the addresses it was captured with, so what changes from replay to replay has
to be written over in place. Knows names and capacities, not what the numbers mean.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from nanobatch.kernels.host_copy import staging_tensor

_ALIGNMENT = 4
"""In elements: arrays begin at multiples of 16 bytes, as wide loads want."""

Int32Array = npt.NDArray[np.int32]


class StaticArrays:
    """Named int32 arrays, one after the other in one tensor.

    Args:
        capacities: Most elements of each array, in order. What a copy moves ends with the last
            element used, so the longest array with the most unused room belongs at the end.
        device: Where they live.
    """

    def __init__(self, capacities: Mapping[str, int], *, device: torch.device) -> None:
        starts = np.cumsum(
            [0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in capacities.values())]
        )
        self._ranges = {
            name: (int(start), int(start) + size)
            for (name, size), start in zip(capacities.items(), starts[:-1], strict=True)
        }
        self._device_copy = torch.zeros(int(starts[-1]), dtype=torch.int32, device=device)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return the whole room of an array on the device, always at the same address."""
        start, stop = self._ranges[name]
        return self._device_copy[start:stop]

    def upload(self, arrays: Mapping[str, Int32Array]) -> None:
        """Queue one copy that writes the beginning of each array; what follows is undefined.

        Args:
            arrays: By name, each at most as long as its capacity.
        """
        ends = {name: self._ranges[name][0] + array.size for name, array in arrays.items()}
        assert all(end <= self._ranges[name][1] for name, end in ends.items()), "over capacity"
        num_elements = max(ends.values())
        staging = staging_tensor((num_elements,), torch.int32, device=self._device_copy.device)
        numbers = staging.numpy()
        for name, array in arrays.items():
            numbers[self._ranges[name][0] : ends[name]] = array.ravel()
        self._device_copy[:num_elements].copy_(staging, non_blocking=True)
