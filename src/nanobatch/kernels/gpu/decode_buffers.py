"""Device memory of paged decode attention: the plan, partial results, the queue's counter.

Allocated once and never moved, so that CUDA graphs can hold its addresses; layouts that never run
at the same time may share it. Knows sizes, not what the kernels do with them.
"""

from dataclasses import dataclass
from typing import Self

import torch

from nanobatch.kernels.decode_plan_layout import NUM_SHARED_ITEMS_WORD, DecodePlanLayout
from nanobatch.kernels.shared_items import MAX_SHARED_PARTIALS


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
        shared_sums: [max_shared_rows * MAX_SHARED_PARTIALS, num_heads, head_dim] fp32, likewise,
            over keys that rows share: row r's partial result p is at r * MAX_SHARED_PARTIALS + p.
        shared_maxima: [max_shared_rows * MAX_SHARED_PARTIALS, num_heads] fp32.
        shared_totals: [max_shared_rows * MAX_SHARED_PARTIALS, num_heads] fp32.
        queue: [1] int32, pairs handed out; zero between launches.
    """

    layout: DecodePlanLayout
    plan_words: torch.Tensor
    partial_sums: torch.Tensor
    partial_maxima: torch.Tensor
    partial_totals: torch.Tensor
    shared_sums: torch.Tensor
    shared_maxima: torch.Tensor
    shared_totals: torch.Tensor
    queue: torch.Tensor

    @classmethod
    def allocate(
        cls,
        layout: DecodePlanLayout,
        plan_words: torch.Tensor,
        *,
        num_heads: int,
        head_dim: int,
        max_shared_rows: int = 0,
    ) -> Self:
        """Allocate on the device of `plan_words`, which may be part of a larger buffer.

        Args:
            layout: Sizes of the bucket.
            plan_words: [layout.num_words] int32 zeros, beginning at a multiple of 16 bytes.
            num_heads: Query heads of this rank.
            head_dim: Elements per head.
            max_shared_rows: Rows that may share keys: those of the largest bucket, or 0.

        Returns:
            The buffers.
        """
        sums, maxima, totals = _partial_results(
            layout.max_partials, num_heads, head_dim, plan_words.device
        )
        shared_sums, shared_maxima, shared_totals = _partial_results(
            max_shared_rows * MAX_SHARED_PARTIALS, num_heads, head_dim, plan_words.device
        )
        return cls(
            layout=layout,
            plan_words=plan_words,
            partial_sums=sums,
            partial_maxima=maxima,
            partial_totals=totals,
            shared_sums=shared_sums,
            shared_maxima=shared_maxima,
            shared_totals=shared_totals,
            queue=torch.zeros(1, dtype=torch.int32, device=plan_words.device),
        )

    @property
    def item_words(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of item_rows, item_first_tokens and item_partials, each to the buffer's end."""
        starts = self.layout.starts
        return (
            self.plan_words[starts.item_rows :],
            self.plan_words[starts.item_first_tokens :],
            self.plan_words[starts.item_partials :],
        )

    @property
    def row_partials(self) -> torch.Tensor:
        """View of row_partials, to the buffer's end."""
        return self.plan_words[self.layout.starts.row_partials :]

    @property
    def shared_row_words(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of row_first_tokens and row_num_partials; of other words if there is no room."""
        starts = self.layout.starts
        return (
            self.plan_words[starts.row_first_tokens :],
            self.plan_words[starts.row_num_partials :],
        )

    @property
    def shared_item_words(self) -> tuple[torch.Tensor, ...]:
        """Views of num_shared_items and of the five arrays of shared items, in their order."""
        starts = self.layout.starts
        return (
            self.plan_words[NUM_SHARED_ITEMS_WORD:],
            self.plan_words[starts.shared_first_rows :],
            self.plan_words[starts.shared_num_rows :],
            self.plan_words[starts.shared_first_tokens :],
            self.plan_words[starts.shared_end_tokens :],
            self.plan_words[starts.shared_partials :],
        )


def _partial_results(
    num_partials: int, num_heads: int, head_dim: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Allocate sums, maxima and totals, each with at least one place."""
    stats_shape = (max(num_partials, 1), num_heads)
    return (
        torch.empty((*stats_shape, head_dim), dtype=torch.float32, device=device),
        torch.empty(stats_shape, dtype=torch.float32, device=device),
        torch.empty(stats_shape, dtype=torch.float32, device=device),
    )
