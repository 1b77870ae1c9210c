"""Repetition, presence and frequency penalties, and the token counts that they need.

Knows which tokens the sequence in each slot has seen. Does not know parameters, positions or why a
sequence entered its slot.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.integer[Any]]


class TokenCounts:
    """Which tokens each slot's sequence has seen, and how often it generated each.

    Takes 5 bytes * num_slots * vocab_size on the device.
    """

    def __init__(self, num_slots: int, *, vocab_size: int, device: torch.device) -> None:
        self._is_seen = torch.zeros(num_slots, vocab_size, dtype=torch.bool, device=device)
        self._num_generated = torch.zeros(num_slots, vocab_size, dtype=torch.int32, device=device)

    def assign(self, slot: int, *, prompt_token_ids: IntArray, output_token_ids: IntArray) -> None:
        """Count a sequence's tokens from scratch, those of a returning one's output too."""
        is_seen, num_generated = self._is_seen[slot], self._num_generated[slot]
        generated_ids = self._on_device(output_token_ids)
        is_seen.zero_()
        is_seen[self._on_device(prompt_token_ids)] = True
        is_seen[generated_ids] = True
        num_generated.zero_()
        num_generated.index_add_(0, generated_ids, torch.ones_like(generated_ids).int())

    def add(self, token_ids: torch.Tensor, *, slots: IntArray) -> None:
        """Count one generated token, [n] int64, for each of n different slots."""
        index = self._on_device(slots)
        self._is_seen[index, token_ids] = True
        self._num_generated[index, token_ids] += 1

    def apply_repetition(
        self, logits: torch.Tensor, penalties: torch.Tensor, *, slots: IntArray
    ) -> None:
        """Shrink the logits of tokens in the prompt or output (CTRL, Keskar et al. 2019, 4.1).

        Args:
            logits: [n, vocab], changed in place: seen ones are divided by the penalty if positive,
                else multiplied.
            penalties: [n, 1] in the logits' dtype.
            slots: [n].
        """
        shrunk = torch.where(logits > 0, logits / penalties, logits * penalties)
        is_seen = self._is_seen[self._on_device(slots)]
        torch.where(is_seen, shrunk, logits, out=logits)

    def apply_generated(
        self,
        logits: torch.Tensor,
        *,
        presence: torch.Tensor,
        frequency: torch.Tensor,
        slots: IntArray,
    ) -> None:
        """Subtract presence once and frequency times the count from logits of generated tokens.

        Args:
            logits: [n, vocab], changed in place.
            presence: [n, 1] in the logits' dtype.
            frequency: [n, 1] in the logits' dtype.
            slots: [n].
        """
        num_generated = self._num_generated[self._on_device(slots)]
        logits -= presence * (num_generated > 0) + frequency * num_generated

    def _on_device(self, integers: IntArray) -> torch.Tensor:
        return torch.from_numpy(integers.astype(np.int64)).to(self._is_seen.device)
