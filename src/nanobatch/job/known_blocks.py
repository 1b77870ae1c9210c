"""A tree of the KV blocks that prompts begin with, and who went through each.

A block is known by the chained hash of all tokens up to its end (64 bits: with a million blocks
known, a block is mistaken for another one with a probability of 5e-14). Knows no files; how much is
kept, and which rows are near each other, is decided by `nanobatch.job.sharing_counter`.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from nanobatch.engine.tokenizer import TokenIds

ROOT: Final = 0
"""Id of what every prompt begins with; it is no block."""

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class _Column(IntEnum):
    """What is known of a block."""

    PARENT = 0
    NUM_ROWS = 1
    NUM_GROUPS = 2
    NUM_SEQS = 3
    NUM_DECODE_STEPS = 4
    LAST_ROW = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenBlocks:
    """What was known of blocks that no further prompt is compared with.

    Attributes:
        num_rows: Rows that went through each, in [num_blocks].
        num_groups: Of these, rows without a near row before them that went through it.
        num_seqs: Answers that the rows get.
        num_decode_steps: Decode steps of these answers.
        beginnings: Level, rows and blocks of every chain of blocks that the same two or more rows
            went through, in [num_beginnings, 3]. A level counts such chains from the root on.
    """

    num_rows: Int64Array
    num_groups: Int64Array
    num_seqs: Int64Array
    num_decode_steps: Int64Array
    beginnings: Int64Array


class KnownBlocks:
    """The tree. A child is found after its parent and used no later than it."""

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}
        self._blocks = np.zeros((1024, len(_Column)), dtype=np.int64)  # [capacity, columns]

    def __len__(self) -> int:
        """Return how many blocks are known."""
        return len(self._ids)

    def use(
        self,
        hashes: list[int],
        *,
        row: int,
        oldest_near_row: int,
        num_seqs: int,
        num_decode_steps: int,
    ) -> tuple[int, int]:
        """Let a row go through its blocks, which are known from now on.

        Args:
            hashes: Its `block_hashes`.
            row: Its number, higher than those before.
            oldest_near_row: The first row that is near it.
            num_seqs: Answers that it gets.
            num_decode_steps: Decode steps of all of them.

        Returns:
            How many of the leading blocks an earlier row went through, and how many a near one.
        """
        found = list(map(self._ids.get, hashes))
        num_known = found.index(None) if None in found else len(found)
        known = np.array(found[:num_known], dtype=np.int64)
        num_near = int(np.count_nonzero(self._blocks[known, _Column.LAST_ROW] >= oldest_near_row))
        self._blocks[known] += (0, 1, 0, num_seqs, num_decode_steps, 0)
        self._blocks[known[num_near:], _Column.NUM_GROUPS] += 1
        self._blocks[known, _Column.LAST_ROW] = row
        if num_known < len(hashes):
            new = self._append(hashes[num_known:], int(known[-1]) if num_known else ROOT)
            new[:, _Column.NUM_ROWS :] = (1, 1, num_seqs, num_decode_steps, row)
        return num_known, num_near

    def _append(self, hashes: list[int], parent: int) -> Int64Array:
        """Make blocks known, each the parent of the next; return their part of the table."""
        first, end = len(self) + 1, len(self) + 1 + len(hashes)
        self._ids.update(zip(hashes, range(first, end), strict=True))
        if end > len(self._blocks):
            longer = np.zeros((2 * end, len(_Column)), dtype=np.int64)
            longer[: len(self._blocks)] = self._blocks
            self._blocks = longer
        new = self._blocks[first:end]
        new[:, _Column.PARENT] = np.arange(first - 1, end - 1)
        new[0, _Column.PARENT] = parent
        return new

    def forget(self, num_blocks: int) -> ForgottenBlocks:
        """Forget the blocks that went unused for longest; return what was known of them.

        Args:
            num_blocks: How many, at least; those last used by the same row go together.
        """
        known = self._blocks[: len(self) + 1]
        is_forgotten = np.zeros(len(known), dtype=np.bool_)
        if num_blocks:
            last_rows = known[1:, _Column.LAST_ROW]
            newest = np.partition(last_rows, num_blocks - 1)[num_blocks - 1]
            is_forgotten[1:] = last_rows <= newest
        forgotten = ForgottenBlocks(
            num_rows=known[is_forgotten, _Column.NUM_ROWS],
            num_groups=known[is_forgotten, _Column.NUM_GROUPS],
            num_seqs=known[is_forgotten, _Column.NUM_SEQS],
            num_decode_steps=known[is_forgotten, _Column.NUM_DECODE_STEPS],
            beginnings=self._beginnings(is_forgotten),
        )
        self._keep(~is_forgotten)
        return forgotten

    def _keep(self, is_kept: BoolArray) -> None:
        """Keep some blocks, whose parents are among them, and number them anew in their order."""
        new_ids = np.cumsum(is_kept) - 1  # [num_known + 1]
        kept = self._blocks[: len(is_kept)][is_kept]
        kept[:, _Column.PARENT] = new_ids[kept[:, _Column.PARENT]]
        keeps, ids = is_kept.tolist(), new_ids.tolist()
        self._ids = {key: ids[old] for key, old in self._ids.items() if keeps[old]}
        self._blocks = kept

    def _beginnings(self, is_wanted: BoolArray) -> Int64Array:
        """Return level, rows and blocks of the chains whose blocks are wanted.

        All blocks of a chain were last used by the same row: they are wanted together or not.
        """
        known = self._blocks[: len(is_wanted)]
        parents, num_rows = known[:, _Column.PARENT], known[:, _Column.NUM_ROWS]
        shared = np.flatnonzero(num_rows >= 2)
        is_head = (parents[shared] == ROOT) | (num_rows[parents[shared]] != num_rows[shared])
        heads = [ROOT] * len(is_wanted)  # of the chain of each block
        levels = [0] * len(is_wanted)  # of the chain that begins with a block
        places = zip(shared.tolist(), parents[shared].tolist(), is_head.tolist(), strict=True)
        for block, parent, begins in places:
            heads[block] = block if begins else heads[parent]
            if begins:
                levels[block] = levels[heads[parent]] + 1
        chains = shared[is_head & is_wanted[shared]]
        num_blocks = np.bincount(heads, minlength=len(is_wanted))
        beginnings = (np.array(levels)[chains], num_rows[chains], num_blocks[chains])
        return np.stack(beginnings, axis=1)  # [num_beginnings, 3]


def block_hashes(token_ids: TokenIds, block_size: int) -> list[int]:
    """Return for each full block of a prompt a hash of all tokens up to its end."""
    content = token_ids.tobytes()
    num_bytes = block_size * token_ids.itemsize
    hashes, parent = [], 0
    for start in range(0, len(content) - num_bytes + 1, num_bytes):
        parent = xxhash.xxh3_64_intdigest(content[start : start + num_bytes], parent)
        hashes.append(parent)
    return hashes
