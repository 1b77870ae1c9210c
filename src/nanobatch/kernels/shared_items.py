"""Ranges of keys that several neighbouring decode rows share, read once for all of them.

The rows of a decode step are listed in depth-first order of the tree that their block tables
form, so whoever shares blocks is a run of rows. A `SharedItems` says which ranges of which runs are
attended to together; what remains of a row, from `row_first_tokens` on, is its own and belongs to
the work items of `kernels.decode_plan`.

A plain value between who plans (`kernels.sharing_plan`) and who attends (`kernels.gpu`). Shared
attention at every depth of a prefix tree: Hydragen (Juravsky et al., 2024, section 3),
ChunkAttention (Ye et al., 2024).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]

MAX_SHARED_PARTIALS = 8
"""Most partial results of one row from shared items: bounds memory and the time of merging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedItems:
    """Shared work of one chunk of decode steps, the most expensive item first.

    Every row of an item holds the item's range in the same blocks, and attends to all of it: its
    own length exceeds `end_tokens` at every step at which it is active. A row that is not active
    may be computed like the others; its result is never read.

    Attributes:
        item_first_rows: [num_items] int32, first row of the batch.
        item_num_rows: [num_items] int32, rows from there on, 1 or more; at most as many as fit the
            kernel's tile of queries.
        item_first_tokens: [num_items] int32, where the range begins, a multiple of block_size.
        item_end_tokens: [num_items] int32, where it ends, a multiple of block_size.
        item_partials: [num_items] int32, 0 to MAX_SHARED_PARTIALS - 1: which of its rows' partial
            results the item makes. The ranges of a row's partial results are in order and
            adjoin: the first begins at 0, the last ends at the row's `row_first_tokens`.
        row_num_partials: [num_rows] int32, partial results of each row; 0 shares nothing.
        row_first_tokens: [num_rows] int32, first key that a row attends to by itself; 0 where it
            shares nothing. Always below the row's length.
    """

    item_first_rows: Int32Array
    item_num_rows: Int32Array
    item_first_tokens: Int32Array
    item_end_tokens: Int32Array
    item_partials: Int32Array
    row_num_partials: Int32Array
    row_first_tokens: Int32Array

    @property
    def num_items(self) -> int:
        """Shared items; with none, the plan is that of rows which share nothing."""
        return len(self.item_first_rows)
