"""How the KV of a decode batch is cut into work items, planned on the host once per chunk of steps.

Every sequence's range of keys is cut at absolute multiples of `split_tokens`, so that what is
computed for a row, and in which order it is added up, depends on that row alone. The items are
sorted by cost, largest first: the few long ones must not begin last.

The plan is made for the lengths at the *end* of a chunk of steps. The kernel clips every item by
the length the row has at its step, so one plan serves all steps of the chunk.

A row that shares its first keys with others (`kernels.shared_items`) has items only for the rest
of them: its first item is then shorter, and takes up what was computed for all sharers together.

Knows lengths only: no torch, no device, no block tables. `kernels.gpu.decode_attention` works the
list off; where the arrays lie on the device is `kernels.decode_plan_layout`'s.

The cut into bounded pieces that are merged by log-sum-exp is Flash-Decoding's (Dao et al., 2023);
planning it on the host once for all layers is FlashInfer's (Ye et al., 2025, section 3.3).
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """Work items, largest first, and where their partial results meet.

    Attributes:
        item_rows: [num_items] int32, row of the batch.
        item_first_tokens: [num_items] int32, a multiple of split_tokens, or the first key that
            the row does not share; the item ends at the next multiple, or with the row.
        item_partials: [num_items] int32, place of the item's partial result. Means nothing for
            a row with a single item, which writes its output directly.
        row_num_splits: [num_rows] int32, items of each row, at least 1.
        row_partials: [num_rows] int32; split s of a row, its keys from s * split_tokens on, has
            its partial result at row_partials[row] + s. Negative where a window makes a row's
            first splits invisible, or the row shares them.
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
    first_tokens: Int32Array | None = None,
) -> DecodePlan:
    """Cut every row's keys into items and sort them by cost.

    Args:
        final_seq_lens: [num_rows] int32, length of each row at its last step of the chunk, that
            step's token included. 0 for padding: such a row gets one item, which writes zeros.
        split_tokens: Length of an item; a power of two, at most `MAX_SPLIT_TOKENS`.
        window: Keys that a query sees, itself included; what no step sees gets no item. A plan
            made without a window serves layers with one too.
        num_steps: Steps of the chunk; read only with a window.
        first_tokens: [num_rows] int32, first key of each row that is not attended to together
            with other rows, below its length; 0 for padding. None is 0 for all.

    Returns:
        The plan. Of equal costs whole items come first, then the first ones of rows, then the
        last ones, each in the order of rows and tokens.

    Raises:
        ValueError: split_tokens is not a power of two in range, first_tokens are not below the
            lengths, or come with a window.
    """
    if not 0 < split_tokens <= MAX_SPLIT_TOKENS or split_tokens & (split_tokens - 1):
        raise ValueError(
            f"split_tokens must be a power of two up to {MAX_SPLIT_TOKENS}, got {split_tokens}"
        )
    shift = split_tokens.bit_length() - 1
    if first_tokens is not None:
        _check_first_tokens(first_tokens, final_seq_lens, window)
    elif window is not None:
        first_visible_tokens = np.maximum(final_seq_lens - (num_steps - 1 + window), 0)
        first_tokens = first_visible_tokens >> shift << shift
    else:
        first_tokens = np.zeros_like(final_seq_lens)
    first_splits = first_tokens >> shift
    last_splits = np.maximum(final_seq_lens - 1, 0) >> shift
    row_num_splits = last_splits - first_splits + 1
    partial_counts = np.where(row_num_splits > 1, row_num_splits, 0)
    partial_ends = np.cumsum(partial_counts, dtype=np.int32)
    row_partials = partial_ends - partial_counts - first_splits
    item_rows, item_first_tokens = _sorted_items(
        first_tokens, last_splits, final_seq_lens, shift=shift
    )
    return DecodePlan(
        item_rows=item_rows,
        item_first_tokens=item_first_tokens,
        item_partials=(item_first_tokens >> shift) + row_partials.take(item_rows),
        row_num_splits=row_num_splits,
        row_partials=row_partials,
        num_partials=int(partial_ends[-1]) if len(partial_ends) else 0,
        split_tokens=split_tokens,
    )


def _check_first_tokens(
    first_tokens: Int32Array, final_seq_lens: Int32Array, window: int | None
) -> None:
    """Refuse what would leave an active row nothing of its own, and windows."""
    if window is not None:
        raise ValueError("rows of layers with a sliding window cannot share keys")
    if (first_tokens >= np.maximum(final_seq_lens, 1)).any():
        raise ValueError("every row must have a key that it does not share")


def _sorted_items(
    first_tokens: Int32Array, last_splits: Int32Array, end_tokens: Int32Array, *, shift: int
) -> tuple[Int32Array, Int32Array]:
    """Return row and first token of every item, the most expensive first.

    A row is one short first item, if it shares keys up to the midst of a split, some whole ones
    and a last one: only the whole ones cost the same.
    """
    split_tokens = 1 << shift
    first_whole = first_tokens >> shift
    num_whole = last_splits - first_whole
    last_tokens = np.maximum(last_splits << shift, first_tokens)
    costs = end_tokens - last_tokens
    if not num_whole.any():
        order = _descending(costs, split_tokens)
        return order.astype(np.int32), last_tokens[order]
    rows, tokens = np.arange(len(last_tokens), dtype=np.int32), last_tokens
    offsets = first_tokens & (split_tokens - 1)
    is_short = (offsets > 0) & (num_whole > 0)
    if is_short.any():
        short_rows = np.flatnonzero(is_short).astype(np.int32)
        rows = np.concatenate([short_rows, rows])
        tokens = np.concatenate([first_tokens[short_rows], tokens])
        costs = np.concatenate([split_tokens - offsets[short_rows], costs])
        first_whole, num_whole = first_whole + is_short, num_whole - is_short
    order = _descending(costs, split_tokens)
    whole_rows, whole_splits = _whole_items(num_whole, first_whole)
    return (
        np.concatenate([whole_rows, rows[order]]),
        np.concatenate([whole_splits << shift, tokens[order]]),
    )


def _descending(costs: Int32Array, most: int) -> npt.NDArray[np.intp]:
    """Return the order of costs up to `most`, largest first; equal ones stay in theirs."""
    return np.argsort((most - costs).astype(np.uint16), kind="stable")


def _whole_items(num_whole: Int32Array, first_whole: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Return row and split of every whole item, in order; a row's are neighbours."""
    rows = np.arange(len(num_whole), dtype=np.int32).repeat(num_whole)
    ends = np.cumsum(num_whole, dtype=np.int32)
    offsets = first_whole + num_whole - ends
    return rows, np.arange(len(rows), dtype=np.int32) + offsets.take(rows)
