"""How the KV of a decode batch is cut into work items, planned on the host once per chunk of steps.

Every sequence's range of keys is cut at absolute multiples of `split_tokens`, so that what is
computed for a row, and in which order it is added up, depends on that row alone. The items are
sorted by cost, largest first: the few long ones must not begin last.

The plan is made for the lengths at the *end* of a chunk of steps. The kernel clips every item by
the length the row has at its step, so one plan serves all steps of the chunk.

Knows lengths only: no torch, no device, no block tables. `kernels.gpu.decode_attention` works the
list off. Sharing (one range of keys, many query rows) will add fields to an item, not change these.

The cut into bounded pieces that are merged by log-sum-exp is Flash-Decoding's (Dao et al., 2023);
planning it on the host once for all layers is FlashInfer's (Ye et al., 2025, section 3.3).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]

SPLIT_TOKENS_OF_ROWS = ((8, 512), (24, 1024))
"""(most rows, split_tokens): few rows need small pieces to keep every SM busy. Not smaller than
that: on an H200, 8 rows of 4,096 tokens are read at 3.4 TB/s in pieces of 512 or 1,024 and at 2.6
to 2.9 in pieces of 256; rows of 1,024 tokens are fastest whole from 32 rows on."""

SPLIT_TOKENS_OF_MANY_ROWS = 2048
"""Pieces of larger batches, where rows alone are parallel enough."""

MAX_SPLITS_OF_A_ROW = 128
"""Bounds the time that merging one row takes."""

MAX_SPLIT_TOKENS = 1 << 15
"""Costs are sorted as 16-bit keys: numpy has a radix sort for those."""

ALIGNMENT_WORDS = 16
"""Arrays of a packed plan begin at multiples of this many int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """Work items, largest first, and where their partial results meet.

    Attributes:
        item_rows: [num_items] int32, row of the batch.
        item_first_tokens: [num_items] int32, a multiple of split_tokens; the item ends
            split_tokens later, or with the row.
        item_partials: [num_items] int32, place of the item's partial result. Means nothing for
            a row with a single item, which writes its output directly.
        row_num_splits: [num_rows] int32, items of each row, at least 1.
        row_partials: [num_rows] int32; split s of a row, which begins at token s * split_tokens,
            has its partial result at row_partials[row] + s. Negative where a window makes a
            row's first splits invisible.
        num_partials: Partial results of all rows with more than one item.
        split_tokens: Length of a whole item.
    """

    item_rows: Int32Array
    item_first_tokens: Int32Array
    item_partials: Int32Array
    row_num_splits: Int32Array
    row_partials: Int32Array
    num_partials: int
    split_tokens: int

    @property
    def num_items(self) -> int:
        """Items of all rows."""
        return len(self.item_rows)

    @property
    def has_splits(self) -> bool:
        """Whether any row has more than one item, so that partial results must be merged."""
        return self.num_partials > 0

    @property
    def num_rows(self) -> int:
        """Rows, padding included."""
        return len(self.row_num_splits)


def choose_split_tokens(num_rows: int, *, max_model_len: int) -> int:
    """Return the length of a work item for a bucket of rows.

    Args:
        num_rows: Size of the bucket, not the number of rows in use: what a row computes must not
            depend on how many others run beside it at the same bucket.
        max_model_len: Most tokens a sequence can have.

    Returns:
        A power of two that cuts no row into more than `MAX_SPLITS_OF_A_ROW`, as far as
        `MAX_SPLIT_TOKENS` allows.
    """
    wanted = next(
        (split for most_rows, split in SPLIT_TOKENS_OF_ROWS if num_rows <= most_rows),
        SPLIT_TOKENS_OF_MANY_ROWS,
    )
    while wanted * MAX_SPLITS_OF_A_ROW < max_model_len and wanted < MAX_SPLIT_TOKENS:
        wanted *= 2
    return wanted


def plan_decode(
    final_seq_lens: Int32Array,
    *,
    split_tokens: int,
    window: int | None = None,
    num_steps: int = 1,
) -> DecodePlan:
    """Cut every row's keys into items and sort them by cost.

    Args:
        final_seq_lens: [num_rows] int32, length of each row at its last step of the chunk, that
            step's token included. 0 for padding: such a row gets one item, which writes zeros.
        split_tokens: Length of an item; a power of two, at most `MAX_SPLIT_TOKENS`.
        window: Keys that a query sees, itself included; what no step sees gets no item. A plan
            made without a window serves layers with one too.
        num_steps: Steps of the chunk; read only with a window.

    Returns:
        The plan. Equal costs keep the order of rows and tokens.

    Raises:
        ValueError: split_tokens is not a power of two in range.
    """
    if not 0 < split_tokens <= MAX_SPLIT_TOKENS or split_tokens & (split_tokens - 1):
        raise ValueError(
            f"split_tokens must be a power of two up to {MAX_SPLIT_TOKENS}, got {split_tokens}"
        )
    shift = split_tokens.bit_length() - 1
    first_splits = np.zeros_like(final_seq_lens)
    if window is not None:
        first_visible_tokens = np.maximum(final_seq_lens - (num_steps - 1 + window), 0)
        first_splits = first_visible_tokens >> shift
    last_splits = np.maximum(final_seq_lens - 1, 0) >> shift
    # A row is some whole items and one last item: only the last ones differ in cost.
    num_whole = last_splits - first_splits
    last_tokens = last_splits << shift
    last_costs = final_seq_lens - last_tokens
    order = np.argsort((split_tokens - last_costs).astype(np.uint16), kind="stable")
    item_rows = order.astype(np.int32)
    item_first_tokens = last_tokens[order]
    row_num_splits = num_whole + 1
    partial_counts = np.where(num_whole > 0, row_num_splits, 0)
    partial_ends = np.cumsum(partial_counts, dtype=np.int32)
    row_partials = partial_ends - partial_counts - first_splits
    num_partials = int(partial_ends[-1]) if len(partial_ends) else 0
    if num_partials:
        whole_rows, whole_splits = _whole_items(num_whole, first_splits)
        item_rows = np.concatenate([whole_rows, item_rows])
        item_first_tokens = np.concatenate([whole_splits << shift, item_first_tokens])
    return DecodePlan(
        item_rows=item_rows,
        item_first_tokens=item_first_tokens,
        item_partials=(item_first_tokens >> shift) + row_partials.take(item_rows),
        row_num_splits=row_num_splits,
        row_partials=row_partials,
        num_partials=num_partials,
        split_tokens=split_tokens,
    )


def _whole_items(num_whole: Int32Array, first_splits: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Return row and split of every item that is not the last of its row, in order."""
    rows = np.arange(len(num_whole), dtype=np.int32).repeat(num_whole)
    ends = np.cumsum(num_whole, dtype=np.int32)
    offsets = first_splits + num_whole - ends
    return rows, np.arange(len(rows), dtype=np.int32) + offsets.take(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlanLayout:
    """Where the arrays of any plan for a bucket lie in one int32 buffer of fixed size.

    The buffer never moves, so that CUDA graphs can hold its address: its first word is num_items,
    then follow item_rows, item_first_tokens, item_partials and row_partials.

    Attributes:
        max_rows: Rows of the bucket.
        max_items: Most items.
        max_partials: Most partial results.
        split_tokens: Length of an item.
    """

    max_rows: int
    max_items: int
    max_partials: int
    split_tokens: int

    @classmethod
    def for_bucket(
        cls, max_rows: int, *, split_tokens: int, max_model_len: int, max_total_tokens: int
    ) -> Self:
        """Size the arrays for the worst batch.

        Args:
            max_rows: Rows of the bucket.
            split_tokens: Length of an item.
            max_model_len: Most tokens of one sequence.
            max_total_tokens: Most tokens of all sequences together, each counted in full, also
                where they share blocks.

        Returns:
            The layout: a row has at most one item that is not whole, so there are at most
            max_rows + total / split_tokens items. A row with partial results has a whole item
            for each that is not, which bounds partial results by twice the whole items.
        """
        total_tokens = min(max_total_tokens, max_rows * max_model_len)
        max_whole_items = total_tokens // split_tokens
        max_items = min(max_rows + max_whole_items, max_rows * -(-max_model_len // split_tokens))
        max_partials = min(max_items, 2 * max_whole_items) if max_model_len > split_tokens else 0
        return cls(
            max_rows=max_rows,
            max_items=max_items,
            max_partials=max_partials,
            split_tokens=split_tokens,
        )

    @property
    def starts(self) -> tuple[int, int, int, int]:
        """Return where item_rows, item_first_tokens, item_partials and row_partials begin."""
        items = _aligned(self.max_items)
        return (
            ALIGNMENT_WORDS,
            ALIGNMENT_WORDS + items,
            ALIGNMENT_WORDS + 2 * items,
            ALIGNMENT_WORDS + 3 * items,
        )

    @property
    def num_words(self) -> int:
        """Size of the buffer in int32."""
        return self.starts[-1] + _aligned(self.max_rows)

    def pack(self, plan: DecodePlan, out: Int32Array) -> None:
        """Write a plan into a buffer; what it does not need keeps its old content.

        Args:
            plan: A plan with this layout's split_tokens.
            out: [num_words] int32, written in part.

        Raises:
            ValueError: The plan does not fit, or was cut at another length.
        """
        if plan.split_tokens != self.split_tokens:
            raise ValueError(
                f"the plan is cut at {plan.split_tokens} tokens, the layout at {self.split_tokens}"
            )
        for name, count, most in (
            ("items", plan.num_items, self.max_items),
            ("partial results", plan.num_partials, self.max_partials),
            ("rows", plan.num_rows, self.max_rows),
        ):
            if count > most:
                raise ValueError(f"the plan has {count} {name}, its buffer holds {most}")
        out[0] = plan.num_items
        arrays = (plan.item_rows, plan.item_first_tokens, plan.item_partials, plan.row_partials)
        for start, array in zip(self.starts, arrays, strict=True):
            out[start : start + len(array)] = array


def _aligned(num_words: int) -> int:
    """Round up to whole units of alignment."""
    return -(-num_words // ALIGNMENT_WORDS) * ALIGNMENT_WORDS
