"""Stop tokens of every slot, as the device wants them: a few a row.

The device ends a row at one of these, so that it does not compute on while the host has not read
the token. It is a saving, not a rule: the host ends sequences, and drops what came after.
"""

from collections.abc import Sequence

import numpy as np

from nanobatch.engine.step_batch import Int32Array


class StopTokens:
    """A table [num_slots, width] of token ids, padded with -1.

    Args:
        num_slots: Slots.
        width: Stop tokens kept of each; of a sequence with more, the first.
    """

    def __init__(self, num_slots: int, *, width: int) -> None:
        self._table = np.full((num_slots, width), -1, dtype=np.int32)

    def assign(self, slot: int, token_ids: Sequence[int]) -> None:
        """Replace the stop tokens of a slot."""
        width = self._table.shape[1]
        kept = token_ids[:width]
        self._table[slot] = (*kept, *(-1 for _ in range(width - len(kept))))

    def of(self, slots: Int32Array) -> Int32Array:
        """Return [n, width] for some slots."""
        rows: Int32Array = self._table[slots]
        return rows
