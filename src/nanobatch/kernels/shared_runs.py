"""Finds the beginnings that sequences share, so that their keys are read once for all.

Sequences share a beginning where their block tables begin with the same blocks. The tables form a
tree; a run of blocks in it that is long enough, and shared by enough sequences, is worth a pass of
its own (the shared-prefix attention of Hydragen, Juravsky et al. 2024, section 3, at every depth
of the tree). Plain numpy; knows nothing of keys or layers.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

MIN_SAVED_TOKENS = 256
"""Keys that a shared pass must save from being read again; below, it costs more than it saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRun:
    """Blocks at the same places in the tables of several sequences.

    Attributes:
        rows: Rows of the tables that share the blocks, two or more.
        block_ids: The blocks, in order.
    """

    rows: IntArray
    block_ids: IntArray


def find_shared_runs(
    block_tables: npt.NDArray[np.int32],
    num_shareable: IntArray,
    *,
    block_size: int,
    min_run_tokens: int = 1,
) -> tuple[list[SharedRun], IntArray]:
    """Take the worthwhile runs from the beginnings of block tables.

    Args:
        block_tables: [num_rows, max_blocks].
        num_shareable: [num_rows] leading blocks of each row that may be shared; 0 takes a row out.
        block_size: Tokens per block.
        min_run_tokens: Fewest keys of a run.

    Returns:
        The runs, and for each row how many of its leading blocks they cover.
    """
    runs: list[SharedRun] = []
    num_covered = np.zeros(len(block_tables), dtype=np.int64)
    pending = [(np.flatnonzero(num_shareable > 0), 0)]
    while pending:
        rows, depth = pending.pop()
        if len(rows) < 2:
            continue
        for siblings in _split(rows, block_tables[rows, depth]):
            end = _common_end(block_tables, num_shareable, rows=siblings, depth=depth)
            start = int(num_covered[siblings[0]])
            num_tokens = (end - start) * block_size
            is_saving = (len(siblings) - 1) * num_tokens >= MIN_SAVED_TOKENS
            if is_saving and num_tokens >= min_run_tokens:
                block_ids = block_tables[siblings[0], start:end].astype(np.int64)
                runs.append(SharedRun(rows=siblings, block_ids=block_ids))
                num_covered[siblings] = end
            pending.append((siblings[num_shareable[siblings] > end], end))
    return runs, num_covered


def _split(rows: IntArray, block_ids: npt.NDArray[np.int32]) -> list[IntArray]:
    """Return the rows that have the same block, where more than one has it."""
    order = np.argsort(block_ids, kind="stable")
    ordered = block_ids[order]
    borders = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return [part for part in np.split(rows[order], borders) if len(part) > 1]


def _common_end(
    block_tables: npt.NDArray[np.int32], num_shareable: IntArray, *, rows: IntArray, depth: int
) -> int:
    """Return up to which block the rows agree, given that they agree up to `depth`."""
    limit = int(num_shareable[rows].min())
    tables = block_tables[rows, depth:limit]
    differs = (tables != tables[:1]).any(axis=0)
    return depth + int(differs.argmax()) if differs.any() else limit
