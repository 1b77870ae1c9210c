"""Attention plans of decode steps: one layout a bucket, all in the same device memory.

Buckets run one after the other, so they share the words of the plan and the room for partial
results. A bucket's step exists in several *variants*: with and without rows that are cut into
several items, with and without keys that are read for several rows at once. Knows sizes and the
memory they take; what an item is, is `kernels.decode_plan`'s, and which keys are shared is
`kernels.sharing_plan`'s.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from nanobatch.config import MIB
from nanobatch.engine.step_batch import Int32Array
from nanobatch.kernels.decode_plan import MAX_SPLIT_TOKENS, choose_split_tokens, plan_decode
from nanobatch.kernels.decode_plan_layout import DecodePlanLayout, most_shared_items
from nanobatch.kernels.gpu.decode_attention import DecodeRows, PagedDecodeAttention
from nanobatch.kernels.gpu.decode_buffers import DecodeBuffers
from nanobatch.kernels.gpu.shared_attention import SHARED_TUNING, max_item_rows
from nanobatch.kernels.sharing_costs import SharingCosts
from nanobatch.kernels.sharing_plan import SharingPlan, plan_sharing

MAX_PARTIAL_BYTES = 512 * MIB
"""Most memory for partial results. Longer work items need less; they only balance worse."""

MOST_VARIANTS = 4
"""Variants of a bucket's step."""


class StepVariant(NamedTuple):
    """Which of the decode steps runs.

    Attributes:
        bucket: Its rows.
        has_splits: Whether rows may be cut into several items; without, attention is faster.
        has_shared: Whether rows may share keys; without, there is no kernel for them.
    """

    bucket: int
    has_splits: bool
    has_shared: bool


class PlannedStep(NamedTuple):
    """What a chunk of steps runs.

    Attributes:
        variant: Which step.
        words: The plan as it is uploaded, without the end that only sharing uses; gaps are 0.
        sharing: What its rows attend to together, None if nothing.
    """

    variant: StepVariant
    words: Int32Array
    sharing: SharingPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What attention plans must know of a model and of the device.

    Attributes:
        num_heads: Query heads of this rank.
        num_kv_heads: KV heads of this rank.
        head_dim: Elements per head.
        element_bytes: Bytes of an element of the KV pool.
        block_size: Tokens per KV block.
        max_model_len: Longest sequence in tokens.
        num_processors: Streaming multiprocessors of the device.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int
    block_size: int
    max_model_len: int
    num_processors: int

    @property
    def partial_bytes(self) -> int:
        """Size of a row's partial result."""
        return self.num_heads * (self.head_dim + 2) * 4


class DecodePlans:
    """Plans of every bucket for one rank's heads.

    Args:
        buckets: Sizes of steps, ascending.
        shape: Of attention.
        shares_keys: Whether rows with blocks in common may attend to them together.
    """

    def __init__(self, buckets: Iterable[int], *, shape: AttentionShape, shares_keys: bool) -> None:
        self._shape = shape
        self._layouts = {
            bucket: _layout(bucket, shape, shares_keys=shares_keys and bucket > 1)
            for bucket in buckets
        }
        self._costs = _sharing_costs(shape)
        self._latest: tuple[bytes, SharingPlan | None] = b"", None

    @property
    def num_words(self) -> int:
        """Size of the largest plan in int32."""
        return max(layout.num_words for layout in self._layouts.values())

    @property
    def variants(self) -> tuple[StepVariant, ...]:
        """Every step that a plan can ask for, the largest first."""
        return tuple(
            StepVariant(bucket, has_splits, has_shared)
            for bucket, layout in sorted(self._layouts.items(), reverse=True)
            for has_shared in ((False, True) if layout.max_shared_items else (False,))
            for has_splits in ((False, True) if layout.max_partials else (False,))
        )

    def plan(
        self, bucket: int, final_seq_lens: Int32Array, num_shared_blocks: Int32Array
    ) -> PlannedStep:
        """Plan a chunk of steps.

        Args:
            bucket: Size of the steps.
            final_seq_lens: [bucket] tokens of each row at the chunk's last step; 0 is padding.
            num_shared_blocks: [bucket] leading blocks that each row has in common with the row
                before it.
        """
        layout = self._layouts[bucket]
        sharing = self._share(bucket, num_shared_blocks)
        items = None if sharing is None else sharing.items
        plan = plan_decode(
            final_seq_lens,
            split_tokens=layout.split_tokens,
            first_tokens=None if items is None else items.row_first_tokens,
        )
        starts = layout.starts
        num_words = starts.row_first_tokens if items is None else starts.end
        words = np.zeros(num_words, dtype=np.int32)
        layout.pack(plan, words, shared=items)
        variant = StepVariant(bucket, plan.has_splits, has_shared=items is not None)
        return PlannedStep(variant, words, sharing)

    def attention(
        self, plan_words: torch.Tensor, rows: DecodeRows, *, windows: Iterable[int | None]
    ) -> dict[StepVariant, dict[int | None, PagedDecodeAttention]]:
        """Return by variant and window what attends.

        Args:
            plan_words: [num_words] int32 zeros on the device, where plans are uploaded to.
            rows: Rows of the largest bucket; the others take the first of them.
            windows: Of all layers; where rows share keys, no layer has one.
        """
        shared = DecodeBuffers.allocate(
            max(self._layouts.values(), key=lambda layout: layout.max_partials),
            plan_words,
            num_heads=self._shape.num_heads,
            head_dim=self._shape.head_dim,
            max_shared_rows=max(
                bucket if layout.max_shared_items else 0 for bucket, layout in self._layouts.items()
            ),
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
                    has_shared=variant.has_shared,
                )
                for window in windows
            }
        return attention

    def _share(self, bucket: int, num_shared_blocks: Int32Array) -> SharingPlan | None:
        """Plan what rows attend to together; the same rows have the same plan."""
        max_items = self._layouts[bucket].max_shared_items
        if not max_items or not num_shared_blocks.any():
            return None
        key = num_shared_blocks.tobytes()
        if self._latest[0] != key:
            self._latest = key, plan_sharing(num_shared_blocks, self._costs, max_items=max_items)
        return self._latest[1]


def _layout(num_rows: int, shape: AttentionShape, *, shares_keys: bool) -> DecodePlanLayout:
    """Size a bucket's plan, with longer items where partial results would take too much."""
    split_tokens = choose_split_tokens(num_rows, max_model_len=shape.max_model_len)
    while True:
        layout = DecodePlanLayout.for_bucket(
            num_rows,
            split_tokens=split_tokens,
            max_model_len=shape.max_model_len,
            max_total_tokens=num_rows * shape.max_model_len,
            max_shared_items=most_shared_items(num_rows) if shares_keys else 0,
        )
        is_small = layout.max_partials * shape.partial_bytes <= MAX_PARTIAL_BYTES
        if is_small or split_tokens * 2 > MAX_SPLIT_TOKENS:
            return layout
        split_tokens *= 2


def _sharing_costs(shape: AttentionShape) -> SharingCosts:
    return SharingCosts.of_heads(
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        element_bytes=shape.element_bytes,
        block_size=shape.block_size,
        max_rows_of_item=max_item_rows(shape.num_heads // shape.num_kv_heads),
        num_programs=shape.num_processors * SHARED_TUNING.programs_per_sm,
    )
