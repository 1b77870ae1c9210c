"""Device memory of paged decode attention: the plan, partial results, the queue's counter.

Allocated once and never moved, so that CUDA graphs can hold its addresses; layouts that never run
at the same time may share it. Knows sizes, not what the kernels do with them.
"""

from dataclasses import dataclass
from typing import Self

import torch

from nanobatch.kernels.decode_plan import DecodePlanLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBuffers:
    """What every layer of a step uses, one after the other.

    Attributes:
        layout: Where things lie in `plan_words`.
        plan_words: [layout.num_words] int32, a plan packed by `layout.pack` on the host and
            copied here in one piece. Must begin as zeros: a launch may glance at an item past
            the end of the list before it knows the end.
        partial_sums: [max_partials, num_heads, head_dim] fp32, sums of weighted values.
        partial_maxima: [max_partials, num_heads] fp32, largest score in base 2.
        partial_totals: [max_partials, num_heads] fp32, sums of weights relative to the largest.
        queue: [1] int32, pairs handed out; zero between launches.
    """

    layout: DecodePlanLayout
    plan_words: torch.Tensor
    partial_sums: torch.Tensor
    partial_maxima: torch.Tensor
    partial_totals: torch.Tensor
    queue: torch.Tensor

    @classmethod
    def allocate(
        cls,
        layout: DecodePlanLayout,
        plan_words: torch.Tensor,
        *,
        num_heads: int,
        head_dim: int,
    ) -> Self:
        """Allocate on the device of `plan_words`, which may be part of a larger buffer.

        Args:
            layout: Sizes of the bucket.
            plan_words: [layout.num_words] int32 zeros, beginning at a multiple of 16 bytes.
            num_heads: Query heads of this rank.
            head_dim: Elements per head.

        Returns:
            The buffers.
        """
        device = plan_words.device
        num_partials = max(layout.max_partials, 1)
        stats_shape = (num_partials, num_heads)
        return cls(
            layout=layout,
            plan_words=plan_words,
            partial_sums=torch.empty((*stats_shape, head_dim), dtype=torch.float32, device=device),
            partial_maxima=torch.empty(stats_shape, dtype=torch.float32, device=device),
            partial_totals=torch.empty(stats_shape, dtype=torch.float32, device=device),
            queue=torch.zeros(1, dtype=torch.int32, device=device),
        )

    @property
    def item_words(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of item_rows, item_first_tokens and item_partials, each to the buffer's end."""
        rows, first_tokens, partials, _ = self.layout.starts
        return self.plan_words[rows:], self.plan_words[first_tokens:], self.plan_words[partials:]

    @property
    def row_partials(self) -> torch.Tensor:
        """View of row_partials, to the buffer's end."""
        return self.plan_words[self.layout.starts[-1] :]
