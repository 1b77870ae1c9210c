"""How many decode steps are launched at once: as few as keep the device from waiting.

While the device computes a chunk of K steps the host reads the chunk before and makes the next.
Long chunks would keep rows that have ended for some steps, and hold blocks for steps to come, so
K is the smallest number whose K steps last twice as long as the host needs.
"""

import math
from typing import Final

MAX_DECODE_STEPS: Final = 8
HOST_MARGIN: Final = 2.0
"""How many times the host's time a chunk should last: hosts are disturbed."""
SMOOTHING: Final = 0.1
"""Weight of a new measurement."""


class ChunkLength:
    """Measures host and device, and says how long the next chunk is.

    Args:
        num_steps: A fixed length; None goes by the measurements, and is 1 without any.
    """

    __slots__ = (
        "_fixed_num_steps",
        "_has_launched",
        "_host_s",
        "_step_s",
        "_turn_started_s",
        "_wait_s",
    )

    def __init__(self, num_steps: int | None = None) -> None:
        self._fixed_num_steps = num_steps
        self._host_s: float | None = None
        self._step_s: float | None = None
        self._turn_started_s = 0.0
        self._wait_s = 0.0
        self._has_launched = False

    @property
    def num_steps(self) -> int:
        """Decode steps of the next chunk."""
        if self._fixed_num_steps is not None:
            return self._fixed_num_steps
        if self._host_s is None or not self._step_s:
            return 1
        num_steps = math.ceil(HOST_MARGIN * self._host_s / self._step_s)
        return min(max(num_steps, 1), MAX_DECODE_STEPS)

    def begin_turn(self, now_s: float) -> int:
        """End the last turn and return how long the next chunk is.

        The host's part of a turn is all between two of them but the waiting for the device, so
        it holds what the caller does with the outputs. Only turns that launched a chunk count.

        Args:
            now_s: Monotonic time in seconds.
        """
        if self._has_launched:
            host_s = max(now_s - self._turn_started_s - self._wait_s, 0.0)
            self._host_s = _smoothed(self._host_s, host_s)
        self._turn_started_s = now_s
        self._wait_s = 0.0
        self._has_launched = False
        return self.num_steps

    def note_launch(self) -> None:
        """Remember that this turn has launched a chunk."""
        self._has_launched = True

    def note_wait(self, wait_s: float) -> None:
        """Take the seconds for which the host waited for the device in this turn."""
        self._wait_s += wait_s

    def note_device(self, device_s: float, num_steps: int) -> None:
        """Take the seconds in which the device computed a chunk."""
        self._step_s = _smoothed(self._step_s, device_s / num_steps)


def _smoothed(average: float | None, value: float) -> float:
    if average is None:
        return value
    # An outlier (a page fault, a slow disk) counts as no more than twice the average.
    return average + SMOOTHING * (min(value, 2 * average) - average)
