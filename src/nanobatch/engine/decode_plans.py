"""Attention plans of decode steps: one layout a bucket, all in the same device memory.

Buckets run one after the other, so they share the words of the plan and the room for partial
results. Knows sizes and the memory they take; what an item is, is `kernels.decode_plan`'s.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from nanobatch.config import MIB
from nanobatch.engine.step_batch import Int32Array
from nanobatch.kernels.decode_plan import (
    MAX_SPLIT_TOKENS,
    DecodePlanLayout,
    choose_split_tokens,
    plan_decode,
)
from nanobatch.kernels.gpu.decode_attention import DecodeRows, PagedDecodeAttention
from nanobatch.kernels.gpu.decode_buffers import DecodeBuffers

MAX_PARTIAL_BYTES = 512 * MIB
"""Most memory for partial results. Longer work items need less; they only balance worse."""


class DecodePlans:
    """Plans of every bucket for one rank's heads.

    Args:
        buckets: Sizes of steps, ascending.
        max_model_len: Longest sequence in tokens.
        num_heads: Query heads.
        num_kv_heads: KV heads.
        head_dim: Dimensions per head.
    """

    def __init__(
        self,
        buckets: Iterable[int],
        *,
        max_model_len: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
    ) -> None:
        self._heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        partial_bytes = num_heads * (head_dim + 2) * 4
        self._layouts = {
            bucket: _layout(bucket, max_model_len=max_model_len, partial_bytes=partial_bytes)
            for bucket in buckets
        }

    @property
    def num_words(self) -> int:
        """Size of the largest plan in int32."""
        return max(layout.num_words for layout in self._layouts.values())

    def words(self, bucket: int, final_seq_lens: Int32Array) -> Int32Array:
        """Plan a chunk of steps.

        Args:
            bucket: Size of the steps.
            final_seq_lens: [bucket] tokens of each row at the chunk's last step; 0 is padding.

        Returns:
            The plan's words; those that it does not use are 0.
        """
        layout = self._layouts[bucket]
        words = np.zeros(layout.num_words, dtype=np.int32)
        layout.pack(plan_decode(final_seq_lens, split_tokens=layout.split_tokens), words)
        return words

    def attention(
        self, plan_words: torch.Tensor, rows: DecodeRows, *, windows: Iterable[int | None]
    ) -> dict[int, dict[int | None, PagedDecodeAttention]]:
        """Return by bucket and window what attends.

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
        arrivals = shared.arrivals.new_zeros(max(self._layouts), self._heads["num_kv_heads"])
        windows = tuple(dict.fromkeys(windows))
        attention = {}
        for bucket, layout in self._layouts.items():
            buffers = replace(
                shared,
                layout=layout,
                plan_words=plan_words[: layout.num_words],
                arrivals=arrivals[:bucket],
            )
            bucket_rows = replace(rows, seq_lens=rows.seq_lens[:bucket])
            attention[bucket] = {
                window: PagedDecodeAttention(rows=bucket_rows, buffers=buffers, window=window)
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
