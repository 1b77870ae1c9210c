"""Attention plans of decode steps: one layout a bucket, all in the same device memory.

Buckets run one after the other, so they share the words of the plan and the room for partial
results. A bucket's step exists in two *variants*: with and without rows that are cut into several
items. Knows sizes and the memory they take; what an item is, is `kernels.decode_plan`'s.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from nanobatch.config import MIB
from nanobatch.engine.step_batch import Int32Array
from nanobatch.kernels.decode_plan import (
    MAX_SPLIT_TOKENS,
    choose_split_tokens,
    plan_decode,
)
from nanobatch.kernels.decode_plan_layout import DecodePlanLayout
from nanobatch.kernels.gpu.decode_attention import DecodeRows, PagedDecodeAttention
from nanobatch.kernels.gpu.decode_buffers import DecodeBuffers

MAX_PARTIAL_BYTES = 512 * MIB
"""Most memory for partial results. Longer work items need less; they only balance worse."""


class StepVariant(NamedTuple):
    """Which of the decode steps runs.

    Attributes:
        bucket: Its rows.
        has_splits: Whether rows may be cut into several items; without, attention is faster.
    """

    bucket: int
    has_splits: bool


class DecodePlans:
    """Plans of every bucket for one rank's heads.

    Args:
        buckets: Sizes of steps, ascending.
        max_model_len: Longest sequence in tokens.
        num_heads: Query heads.
        head_dim: Dimensions per head.
    """

    def __init__(
        self,
        buckets: Iterable[int],
        *,
        max_model_len: int,
        num_heads: int,
        head_dim: int,
    ) -> None:
        self._heads = {"num_heads": num_heads, "head_dim": head_dim}
        partial_bytes = num_heads * (head_dim + 2) * 4
        self._layouts = {
            bucket: _layout(bucket, max_model_len=max_model_len, partial_bytes=partial_bytes)
            for bucket in buckets
        }

    @property
    def num_words(self) -> int:
        """Size of the largest plan in int32."""
        return max(layout.num_words for layout in self._layouts.values())

    @property
    def variants(self) -> tuple[StepVariant, ...]:
        """Every step that a plan can ask for, the largest first."""
        return tuple(
            StepVariant(bucket, has_splits)
            for bucket, layout in sorted(self._layouts.items(), reverse=True)
            for has_splits in ((False, True) if layout.max_partials else (False,))
        )

    def plan(self, bucket: int, final_seq_lens: Int32Array) -> tuple[StepVariant, Int32Array]:
        """Plan a chunk of steps.

        Args:
            bucket: Size of the steps.
            final_seq_lens: [bucket] tokens of each row at the chunk's last step; 0 is padding.

        Returns:
            The variant that runs it, and the plan's words; those that it does not use are 0.
        """
        layout = self._layouts[bucket]
        plan = plan_decode(final_seq_lens, split_tokens=layout.split_tokens)
        words = np.zeros(layout.num_words, dtype=np.int32)
        layout.pack(plan, words)
        return StepVariant(bucket, plan.has_splits), words

    def attention(
        self, plan_words: torch.Tensor, rows: DecodeRows, *, windows: Iterable[int | None]
    ) -> dict[StepVariant, dict[int | None, PagedDecodeAttention]]:
        """Return by variant and window what attends.

        Args:
            plan_words: [num_words] int32 zeros on the device, where plans are uploaded to.
            rows: Rows of the largest bucket; the others take the first of them.
            windows: Of all layers.
        """
        shared = DecodeBuffers.allocate(
            max(self._layouts.values(), key=lambda layout: layout.max_partials),
            plan_words,
            **self._heads,
        )
        windows = tuple(dict.fromkeys(windows))
        attention = {}
        for variant in self.variants:
            layout = self._layouts[variant.bucket]
            buffers = replace(shared, layout=layout, plan_words=plan_words[: layout.num_words])
            bucket_rows = replace(rows, seq_lens=rows.seq_lens[: variant.bucket])
            attention[variant] = {
                window: PagedDecodeAttention(
                    rows=bucket_rows,
                    buffers=buffers,
                    window=window,
                    has_splits=variant.has_splits,
                )
                for window in windows
            }
        return attention


def _layout(num_rows: int, *, max_model_len: int, partial_bytes: int) -> DecodePlanLayout:
    """Size a bucket's plan, with longer items where partial results would take too much."""
    split_tokens = choose_split_tokens(num_rows, max_model_len=max_model_len)
    while True:
        layout = DecodePlanLayout.for_bucket(
            num_rows,
            split_tokens=split_tokens,
            max_model_len=max_model_len,
            max_total_tokens=num_rows * max_model_len,
        )
        is_small = layout.max_partials * partial_bytes <= MAX_PARTIAL_BYTES
        if is_small or split_tokens * 2 > MAX_SPLIT_TOKENS:
            return layout
        split_tokens *= 2
