"""Attention of a step whose sequences take keys and values from slots of others.

Where prompts have the beginning of a block in common, one computes its keys and values and the
others copy them. A layer's copies are made when it has stored the step's own keys and values,
which may be among the sources, and before it attends, which may read the destinations. A step's
own tokens are never stored where something is copied to, so only copies and attention need this
order. Knows neither which kernel copies nor which attends.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from nanobatch.kernels.step_attention import ModelAttention, StepAttention


class CopySlots(Protocol):
    """Copies within one layer's pool: `kv_cache.copy_slots`, or the same on a GPU."""

    def __call__(
        self, key_cache: torch.Tensor, value_cache: torch.Tensor, *, slot_copies: torch.Tensor
    ) -> None:
        """Copy [2, num_copies] source slots to destination slots."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyingAttention:
    """A `StepAttention` that copies first.

    Attributes:
        attention: What attends then.
        slot_copies: [2, num_copies] int64 source and destination slots.
        copy_slots: Makes the copies.
    """

    attention: StepAttention
    slot_copies: torch.Tensor
    copy_slots: CopySlots

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Copy within the layer's pool, then attend (see `StepAttention.attend`)."""
        self.copy_slots(key_cache, value_cache, slot_copies=self.slot_copies)
        return self.attention.attend(
            query, key, value, key_cache=key_cache, value_cache=value_cache, scale=scale
        )


def copying_first(
    attention: ModelAttention, slot_copies: torch.Tensor, *, copy_slots: CopySlots
) -> ModelAttention:
    """Return a step's attention with copies in every layer; itself if there are none.

    Args:
        attention: The step's attention.
        slot_copies: [2, num_copies] int64 source and destination slots.
        copy_slots: Makes the copies of a layer.
    """
    if slot_copies.shape[1] == 0:
        return attention
    by_window = {
        window: CopyingAttention(
            attention=step_attention, slot_copies=slot_copies, copy_slots=copy_slots
        )
        for window, step_attention in attention.by_window.items()
    }
    return replace(attention, by_window=by_window)
