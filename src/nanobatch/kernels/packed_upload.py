"""Carries a step's small arrays to the device in one copy.

A copy of a few kilobytes costs the host as much as one of a megabyte, so arrays are laid one
after the other in a pinned buffer and split into views on the device. Knows nothing of what the
arrays mean.
"""

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT_BYTES = 128
"""Every array begins at a multiple of this, so that kernels may read it in vectors."""


class PackedUpload:
    """Uploads several arrays at once, without waiting for the device.

    Staging buffers are used in turn and grow as needed. Each is guarded by an event that says
    when the device has read it: only a caller who is as many uploads ahead as there are buffers
    waits. What is uploaded belongs to the caller.

    Args:
        device: Where arrays go; on CPU they are only copied.
        num_buffers: Uploads that may be on their way at a time.
    """

    def __init__(self, device: torch.device, *, num_buffers: int = 4) -> None:
        self._device = device
        is_pinned = device.type == "cuda"
        self._buffers = [_StagingBuffer(is_pinned=is_pinned) for _ in range(num_buffers)]
        self._next_buffer = 0

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
        buffer = self._buffers[self._next_buffer]
        self._next_buffer = (self._next_buffer + 1) % len(self._buffers)
        starts, num_bytes = _layout(arrays)
        staging = buffer.reserve(num_bytes)
        for array, start in zip(arrays, starts, strict=True):
            staging[start : start + array.nbytes].view(array.dtype)[:] = array.ravel()
        packed = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        buffer.copy_to(packed)
        return tuple(
            _view_like(array, packed[start : start + array.nbytes])
            for array, start in zip(arrays, starts, strict=True)
        )


class _StagingBuffer:
    """Memory that the device reads by itself, and the event after which it has done so."""

    def __init__(self, *, is_pinned: bool) -> None:
        self._is_pinned = is_pinned
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._has_been_read: torch.cuda.Event | None = None

    def reserve(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Wait until the last copy is done; return the first bytes, to be written."""
        if self._has_been_read is not None:
            self._has_been_read.synchronize()
        if len(self._bytes) < num_bytes:
            capacity = 1 << (num_bytes - 1).bit_length()
            self._bytes = torch.empty(capacity, dtype=torch.uint8, pin_memory=self._is_pinned)
        staging: npt.NDArray[np.uint8] = self._bytes.numpy()[:num_bytes]
        return staging

    def copy_to(self, packed: torch.Tensor) -> None:
        """Start the copy of as many bytes as `packed` has."""
        packed.copy_(self._bytes[: len(packed)], non_blocking=self._is_pinned)
        if self._is_pinned:
            self._has_been_read = torch.cuda.current_stream(packed.device).record_event()


def _layout(arrays: tuple[npt.NDArray[np.generic], ...]) -> tuple[list[int], int]:
    """Return where each array starts, and the bytes of all; never 0."""
    starts, end = [], 0
    for array in arrays:
        starts.append(end)
        end += -(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return starts, max(end, ALIGNMENT_BYTES)


def _view_like(array: npt.NDArray[np.generic], packed_bytes: torch.Tensor) -> torch.Tensor:
    dtype = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
    return packed_bytes.view(dtype).view(array.shape)
