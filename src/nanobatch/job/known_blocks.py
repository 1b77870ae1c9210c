"""A tree of the KV blocks that prompts begin with, and who went through each.

A block is known by the chained hash of all tokens up to its end (64 bits: with a million blocks
known, a block is mistaken for another one with a probability of 5e-14). Its tokens are kept, too:
where a prompt leaves the tree, its next tokens are compared with the children of its last block, as
the engine does to copy them (`nanobatch.engine.copy_sources`). Knows no files: how much is kept and
which rows are near each other, is decided by `nanobatch.job.sharing_counter`.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from nanobatch.engine.tokenizer import TokenIds

ROOT: Final = 0
"""Id of what every prompt begins with; it is no block."""

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)


class _Column(IntEnum):
    """What is known of a block."""

    PARENT = 0
    CHILD = 1
    NUM_ROWS = 2
    NUM_GROUPS = 3
    NUM_SEQS = 4
    NUM_DECODE_STEPS = 5
    LAST_ROW = 6


class Reuse(NamedTuple):
    """What a prompt has in common with those before it.

    Attributes:
        num_known: Leading blocks that an earlier row went through.
        num_near: Leading blocks that a near earlier row went through.
        num_common_tokens: Tokens after these that a block of a near earlier row begins with, at the
            same place; the prompt's last token and that of a full block are left out.
    """

    num_known: int
    num_near: int
    num_common_tokens: int


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
    """The tree. A child is found after its parent and used no later than it.

    Args:
        block_size: Tokens of a block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ids: dict[int, int] = {}
        self._siblings: dict[int, list[int]] = {}
        """Children of a block that has several, in the order of their tokens' bytes."""
        self._tokens = np.zeros((1024, block_size), dtype=np.int32)  # [capacity, block_size]
        self._blocks = np.zeros((1024, len(_Column)), dtype=np.int64)  # [capacity, columns]

    def __len__(self) -> int:
        """Return how many blocks are known."""
        return len(self._ids)

    def use(
        self,
        token_ids: TokenIds,
        *,
        row: int,
        oldest_near_row: int,
        num_seqs: int,
        num_decode_steps: int,
    ) -> Reuse:
        """Let a row go through its blocks, which are known from now on.

        Args:
            token_ids: Its prompt, in [num_tokens].
            row: Its number, higher than those before.
            oldest_near_row: The first row that is near it.
            num_seqs: Answers that it gets.
            num_decode_steps: Decode steps of all of them.
        """
        hashes = block_hashes(token_ids, self._block_size)
        found = list(map(self._ids.get, hashes))
        num_known = found.index(None) if None in found else len(found)
        known = np.array(found[:num_known], dtype=np.int64)
        num_near = int(np.count_nonzero(self._blocks[known, _Column.LAST_ROW] >= oldest_near_row))
        num_common = self._num_common_tokens(
            int(known[num_near - 1]) if num_near else ROOT,
            token_ids[num_near * self._block_size :][: self._block_size][:-1],
            oldest_near_row,
        )
        self._blocks[known] += (0, 0, 1, 0, num_seqs, num_decode_steps, 0)
        self._blocks[known[num_near:], _Column.NUM_GROUPS] += 1
        self._blocks[known, _Column.LAST_ROW] = row
        if num_known < len(hashes):
            first = self._append(token_ids, hashes, known)
            self._blocks[first : len(self) + 1, _Column.NUM_ROWS :] = (
                1,
                1,
                num_seqs,
                num_decode_steps,
                row,
            )
        return Reuse(num_known, num_near, num_common)

    def _append(self, token_ids: TokenIds, hashes: list[int], known: Int64Array) -> int:
        """Make a prompt's blocks known that are not yet; return the first one's id.

        Args:
            token_ids: The prompt.
            hashes: Hashes of its blocks.
            known: Ids of its blocks that are known.
        """
        first, end = len(self) + 1, len(self) + 1 + len(hashes) - len(known)
        self._ids.update(zip(hashes[len(known) :], range(first, end), strict=True))
        if end > len(self._blocks):
            self._blocks = _longer(self._blocks, 2 * end)
            self._tokens = _longer(self._tokens, 2 * end)
        full_blocks = token_ids[: len(hashes) * self._block_size].reshape(len(hashes), -1)
        self._tokens[first:end] = full_blocks[len(known) :]
        self._blocks[first:end, _Column.PARENT] = np.arange(first - 1, end - 1)
        self._blocks[first : end - 1, _Column.CHILD] = np.arange(first + 1, end)
        parent = int(known[-1]) if len(known) else ROOT
        self._blocks[first, _Column.PARENT] = parent
        siblings = self._children(parent)
        if siblings:
            insort(siblings, first, key=self._token_bytes)
            self._siblings[parent] = siblings
        else:
            self._blocks[parent, _Column.CHILD] = first
        return first

    def _children(self, block: int) -> list[int]:
        """Return a block's children in the order of their tokens' bytes."""
        several = self._siblings.get(block)
        if several is not None:
            return several
        child = int(self._blocks[block, _Column.CHILD])
        return [] if child == ROOT else [child]

    def _num_common_tokens(self, parent: int, tokens: TokenIds, oldest_near_row: int) -> int:
        """Return how many tokens a near child of a block begins with, at most.

        The longer two pieces are alike, the nearer they stand in the order of their bytes.
        """
        children = self._children(parent)
        place = bisect_left(children, tokens.tobytes(), key=self._token_bytes)
        sides = (range(place, len(children)), range(place - 1, -1, -1))
        return max(
            self._first_near((children[i] for i in side), tokens, oldest_near_row) for side in sides
        )

    def _first_near(self, blocks: Iterable[int], tokens: TokenIds, oldest_near_row: int) -> int:
        """Return what the first near block has in common, of blocks that have less and less."""
        for block in blocks:
            is_equal = self._tokens[block, : len(tokens)] == tokens
            num_common = len(tokens) if is_equal.all() else int(is_equal.argmin())
            if num_common == 0 or self._blocks[block, _Column.LAST_ROW] >= oldest_near_row:
                return num_common
        return 0

    def _token_bytes(self, block: int) -> bytes:
        token_bytes: bytes = self._tokens[block].tobytes()
        return token_bytes

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
        children = kept[:, _Column.CHILD]
        kept[:, _Column.CHILD] = np.where(is_kept[children], new_ids[children], ROOT)
        self._tokens = self._tokens[: len(is_kept)][is_kept]
        keeps, ids = is_kept.tolist(), new_ids.tolist()
        several = {
            ids[parent]: [ids[child] for child in siblings if keeps[child]]
            for parent, siblings in self._siblings.items()
            if keeps[parent]
        }
        self._siblings = {parent: siblings for parent, siblings in several.items() if siblings}
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


def _longer(table: npt.NDArray[Scalar], num_rows: int) -> npt.NDArray[Scalar]:
    """Return a table with more rows, which are zero."""
    longer = np.zeros((num_rows, table.shape[1]), dtype=table.dtype)
    longer[: len(table)] = table
    return longer
