"""What a layer asks of attention: one object a step, planned once, used by every layer alike.

Which kernel runs, and over which pieces, is the business of whoever made the object. A layer only
hands over its queries and its part of the KV pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


class StepAttention(Protocol):
    """Causal attention of one step, for all layers with the same window."""

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
        """Attend to every key that each query sees.

        Args:
            query: [num_tokens, num_heads, head_dim], last dimension contiguous.
            key: [num_tokens, num_kv_heads, head_dim], this step's keys; the pool holds them too.
            value: [num_tokens, num_kv_heads, head_dim], this step's values; likewise.
            key_cache: [num_blocks, block_size, num_kv_heads, head_dim].
            value_cache: [num_blocks, block_size, num_kv_heads, head_dim].
            scale: Multiplies the scores before softmax.

        Returns:
            [num_tokens, num_heads, head_dim], contiguous.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAttention:
    """One step's attention for all layers of a model.

    Attributes:
        slot_mapping: [num_tokens] int64, where each token's key and value are stored;
            -1 stores nothing.
        by_window: What attends in layers with a window of so many tokens; None sees everything.
    """

    slot_mapping: torch.Tensor
    by_window: Mapping[int | None, StepAttention]
