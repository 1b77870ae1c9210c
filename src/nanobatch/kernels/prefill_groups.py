"""Finds the chunks of a prompt step that should attend to their common beginning together.

A chunk alone fills the tiles of the attention kernel badly when it is short: 16 queries of 2 heads
each are 32 rows of a tile of 128. Chunks that follow each other and begin with the same blocks may
share tiles over these keys (the prefix attention of Hydragen, Juravsky et al. 2024, section 3,
for prompts), at the price of a second pass: over each chunk's own keys, beginning from what the
first pass left. Here it is decided who gains; the passes are `SharedGroups` in `prefill_plan`.

Tables of neighbours form a tree: chunks that share more keys lie inside those that share less.
Each chunk is in one group at most, at the level of the tree that saves the most. A pass for every
level would not pay: it costs a row as much as some 240 keys do, and a group that fills its tiles
leaves nothing to be saved above it.

Plain numpy; the costs that decide come from the caller.
"""

from dataclasses import dataclass, field

import numpy as np

from nanobatch.kernels.prefill_plan import BoolArray, IntArray, PrefillChunks, SharedGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCosts:
    """What attention costs, in seconds of a layer with all its KV heads.

    A row is one query with one of the query heads that share a KV head.

    Attributes:
        rows_per_query: Query heads per KV head.
        tile_rows: Rows of a tile in a pass over all keys, or over shared ones.
        key_s: One key for one row of such a tile, used or not.
        rest_tile_rows: Rows of a tile in the pass that goes on with a chunk's own keys.
        rest_key_s: One key for one row of that.
        row_s: Reading a row's query and first result again, and replacing the result.
        step_s: The launches of a step that has groups, beyond those of one without.
    """

    rows_per_query: int
    tile_rows: int
    key_s: float
    rest_tile_rows: int
    rest_key_s: float
    row_s: float
    step_s: float


def find_shared_groups(
    chunks: PrefillChunks, *, block_size: int, keys_multiple: int, costs: GroupCosts
) -> SharedGroups:
    """Choose groups among neighbouring sequences of a step.

    Only full blocks before a sequence's first query are shared, so a sequence that computes a
    beginning in this step is in no group over it, while those that follow it are: their keys are
    stored before attention reads any.

    Args:
        chunks: The step.
        block_size: Tokens per block.
        keys_multiple: Groups share multiples of this many keys.
        costs: What a group saves and costs.

    Returns:
        The groups; none where all of them together save too little.
    """
    shared_keys = _keys_shared_with_previous(chunks, block_size)
    shared_keys -= shared_keys % keys_multiple
    if not shared_keys.any():
        return SharedGroups.none()
    savings = _Savings.of(chunks, costs)
    deepest = np.maximum(shared_keys, np.append(shared_keys[1:], 0))
    gains_nothing = ~savings.could_gain(deepest)
    shared_keys[gains_nothing] = 0
    shared_keys[1:][gains_nothing[:-1]] = 0
    groups = _best_groups(shared_keys, savings)
    if sum(group.saved_s for group in groups) <= costs.step_s:
        return SharedGroups.none()
    return SharedGroups(
        first_rows=np.array([group.first_row for group in groups]),
        end_rows=np.array([group.end_row for group in groups]),
        num_shared_keys=np.array([group.num_keys for group in groups]),
    )


def _keys_shared_with_previous(chunks: PrefillChunks, block_size: int) -> IntArray:
    """Return [num_seqs] leading keys, in full blocks before both first queries, in common."""
    num_blocks = chunks.first_positions.astype(np.int64) // block_size
    starts = chunks.table_starts.astype(np.int64)
    limit = np.minimum(num_blocks[:-1], num_blocks[1:])  # [num_seqs - 1], of neighbours
    limit[chunks.block_ids[starts[:-1]] != chunks.block_ids[starts[1:]]] = 0
    pair = np.repeat(np.arange(len(limit)), limit)
    block = np.arange(len(pair)) - np.repeat(np.cumsum(limit) - limit, limit)
    upper, lower = (
        chunks.block_ids[starts[pair] + block],
        chunks.block_ids[starts[pair + 1] + block],
    )
    differs = upper != lower
    np.minimum.at(limit, pair[differs], block[differs])
    return np.concatenate(([0], limit * block_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Savings:
    """What groups save: sums over the rows before each sequence, so that any run is one look-up.

    Attributes:
        costs: Of the passes.
        num_rows: [num_seqs + 1] rows in earlier sequences.
        alone_s: [num_seqs + 1] seconds per shared key, computed without groups.
        rest_s: [num_seqs + 1] seconds by which one own key is slower in the second pass.
        rest_whole_s: [num_seqs + 1] the same for as many keys as a query sees on average.
    """

    costs: GroupCosts
    num_rows: IntArray
    alone_s: np.ndarray
    rest_s: np.ndarray
    rest_whole_s: np.ndarray

    @classmethod
    def of(cls, chunks: PrefillChunks, costs: GroupCosts) -> "_Savings":
        num_rows = chunks.query_lens.astype(np.int64) * costs.rows_per_query
        alone_s = _tiled(num_rows, costs.tile_rows) * costs.key_s
        rest_s = _tiled(num_rows, costs.rest_tile_rows) * costs.rest_key_s - alone_s
        mean_keys = chunks.seq_lens - (chunks.query_lens - 1) / 2
        return cls(
            costs=costs,
            num_rows=_sums(num_rows),
            alone_s=_sums(alone_s),
            rest_s=_sums(rest_s),
            rest_whole_s=_sums(rest_s * mean_keys),
        )

    def could_gain(self, num_keys: IntArray) -> BoolArray:
        """Say of each sequence if it could gain in a group that shares so many of its keys.

        Shared tiles are counted as full, so one that could not gain is a burden to any group.
        """
        num_rows = np.diff(self.num_rows)
        shared_s = num_keys * (np.diff(self.alone_s) - num_rows * self.costs.key_s)
        rest_s = np.diff(self.rest_whole_s) - num_keys * np.diff(self.rest_s)
        could_gain: BoolArray = shared_s - rest_s > num_rows * self.costs.row_s
        return could_gain

    def of_group(self, first_row: int, end_row: int, num_keys: int) -> float:
        """Return the seconds that a group of sequences saves; below 0 it costs."""
        num_rows, alone_s, rest_s, rest_whole_s = (
            sums[end_row] - sums[first_row]
            for sums in (self.num_rows, self.alone_s, self.rest_s, self.rest_whole_s)
        )
        shared_s = _tiled(num_rows, self.costs.tile_rows) * self.costs.key_s
        second_pass_s = rest_whole_s - num_keys * rest_s + num_rows * self.costs.row_s
        return float(num_keys * (alone_s - shared_s) - second_pass_s)


def _tiled(num_rows: IntArray, tile_rows: int) -> IntArray:
    """Return the rows of the tiles that hold so many rows."""
    return -(-num_rows // tile_rows) * tile_rows


def _sums(numbers: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(numbers)))


@dataclass(frozen=True, slots=True)
class _Group:
    first_row: int
    end_row: int
    num_keys: int
    saved_s: float


@dataclass(slots=True)
class _OpenRun:
    """Neighbours that share `num_keys`, the next ones of which are still to be seen."""

    first_row: int
    num_keys: int
    inner: list[_Group] = field(default_factory=list)

    def close(self, end_row: int, savings: _Savings) -> list[_Group]:
        """Return the run as one group, or the groups inside it where they save more."""
        saved_s = savings.of_group(self.first_row, end_row, self.num_keys)
        if saved_s > sum(group.saved_s for group in self.inner):
            return [_Group(self.first_row, end_row, self.num_keys, saved_s)]
        return self.inner


def _best_groups(shared_keys: IntArray, savings: _Savings) -> list[_Group]:
    """Choose, at every node of the tree of common beginnings, between it and the nodes below.

    The nodes are the intervals of an array of longest common prefixes (Abouelhoda et al. 2004,
    "Replacing suffix trees with enhanced suffix arrays"), found in one pass with a stack.

    Args:
        shared_keys: [num_seqs] keys that each sequence shares with the one before; first 0.
        savings: Of any group.
    """
    open_runs = [_OpenRun(first_row=0, num_keys=0)]
    for row, num_keys in enumerate([*shared_keys[1:].tolist(), 0], start=1):
        first_row = row - 1
        inner: list[_Group] = []
        while open_runs[-1].num_keys > num_keys:
            closing = open_runs.pop()
            closing.inner += inner
            first_row, inner = closing.first_row, closing.close(row, savings)
        if open_runs[-1].num_keys < num_keys:
            open_runs.append(_OpenRun(first_row, num_keys, inner))
        else:
            open_runs[-1].inner += inner
    return open_runs[0].inner
