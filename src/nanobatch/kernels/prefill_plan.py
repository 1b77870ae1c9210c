"""How the attention of a step of prompt chunks is cut into tiles of queries.

Plain numpy: knows lengths, positions and where tables begin, and neither torch nor a kernel.
Tiles are ordered by cost, so that the longest ones do not end a launch alone, but only inside
sections of sequences whose keys and values fit the L2 cache together: tiles of one sequence read
the same keys, and running them at different times would read those from memory again. (FA3 orders
its tiles in the same spirit: longest first within an L2 section.)
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

SECTION_BYTES = 24 << 20
"""Keys and values that one section reads: half of the L2 cache of the GPUs we know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunks:
    """What attention must know of a step of prompt chunks.

    A query sees the keys of its sequence up to its own position. Every sequence's keys stand in
    the pool before attention runs.

    Attributes:
        query_start_loc: [num_seqs + 1] first query of each sequence, and the end.
        seq_lens: [num_seqs] position after the last query of each sequence.
        block_ids: [n] KV blocks of all sequences, one table after the other.
        table_starts: [num_seqs] where each sequence's table begins in `block_ids`.
        has_own_keys: The step's new keys belong to its queries one to one. False where queries
            are only some of the tokens computed: all keys are then read from the pool.
    """

    query_start_loc: Int32Array
    seq_lens: Int32Array
    block_ids: Int32Array
    table_starts: Int32Array
    has_own_keys: bool = True

    @property
    def num_seqs(self) -> int:
        """Sequences with a chunk."""
        return len(self.seq_lens)

    @property
    def query_lens(self) -> Int32Array:
        """[num_seqs] queries of each sequence."""
        return np.diff(self.query_start_loc)

    @property
    def first_positions(self) -> Int32Array:
        """[num_seqs] position of each sequence's first query."""
        return self.seq_lens - self.query_lens

    @property
    def is_fresh(self) -> BoolArray:
        """[num_seqs] all keys that a sequence sees are among the step's new keys."""
        is_fresh: BoolArray = (self.first_positions == 0) & self.has_own_keys
        return is_fresh

    def last_queries(self, rows: npt.NDArray[np.integer]) -> "PrefillChunks":
        """Return the same step with one query of each of these sequences: that of its last token.

        This is what the last layer computes, where logits are wanted at the ends of prompts only.

        Args:
            rows: [n] sequences, in the order of their queries.
        """
        return PrefillChunks(
            query_start_loc=np.arange(len(rows) + 1, dtype=np.int32),
            seq_lens=self.seq_lens[rows],
            block_ids=self.block_ids,
            table_starts=self.table_starts[rows],
            has_own_keys=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGroups:
    """Neighbouring sequences of a step that attend to the same beginning together.

    All queries of a group are computed as one sequence over the shared keys, which all stand
    before any of them; then each sequence goes on with its own keys.

    Attributes:
        first_rows: [num_groups] first sequence of each group, ascending.
        end_rows: [num_groups] sequence after the last one of each group; groups do not overlap.
        num_shared_keys: [num_groups] leading keys that a group's sequences share.
    """

    first_rows: IntArray
    end_rows: IntArray
    num_shared_keys: IntArray

    @classmethod
    def none(cls) -> "SharedGroups":
        """Return no groups."""
        no_rows = np.empty(0, dtype=np.int64)
        return cls(first_rows=no_rows, end_rows=no_rows, num_shared_keys=no_rows)

    @property
    def num_groups(self) -> int:
        """How many there are."""
        return len(self.first_rows)

    def shared_keys_of_rows(self, num_seqs: int) -> IntArray:
        """Return [num_seqs] the keys that each sequence's group shares, 0 for those in none."""
        shared_keys = np.zeros(num_seqs, dtype=np.int64)
        num_rows = self.end_rows - self.first_rows
        rows = np.repeat(self.first_rows - (np.cumsum(num_rows) - num_rows), num_rows)
        shared_keys[rows + np.arange(len(rows))] = np.repeat(self.num_shared_keys, num_rows)
        return shared_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class TileLimits:
    """How large a tile is, and how much a section reads.

    Attributes:
        queries_per_tile: Most queries of one tile.
        keys_per_section: Sequences share a section while they have no more keys than this.
    """

    queries_per_tile: int
    keys_per_section: int


def plan_tiles(
    chunks: PrefillChunks,
    rows: npt.NDArray[np.integer],
    *,
    source_starts: Int32Array,
    limits: TileLimits,
    first_keys: IntArray | None = None,
) -> Int32Array:
    """Cut the queries of some sequences into tiles.

    A sequence's tiles begin at its own first query, so that what is computed for it does not
    depend on the sequences beside it.

    Args:
        chunks: The step.
        rows: [n] the sequences.
        source_starts: [num_seqs] where each sequence's keys begin, as the kernel counts.
        limits: Sizes of tiles and sections.
        first_keys: [num_seqs] keys that were attended to before; none by default.

    Returns:
        [num_tiles, 5] in launch order: first query in the step, number of queries, position of
        the first query, where the sequence's keys begin, first key that is attended to.
    """
    query_lens = chunks.query_lens[rows]
    index, first_query, num_queries = _cut(query_lens, limits)
    first_position = chunks.first_positions[rows][index] + first_query
    first_key = np.zeros(chunks.num_seqs, np.int64) if first_keys is None else first_keys
    num_keys = chunks.seq_lens[rows] - first_key[rows]
    section = _sections(num_keys, keys_per_section=limits.keys_per_section)
    order = np.lexsort((first_key[rows][index] - first_position - num_queries, section[index]))
    columns = (
        chunks.query_start_loc[rows][index] + first_query,
        num_queries,
        first_position,
        source_starts[rows][index],
        first_key[rows][index],
    )
    return np.stack(columns, axis=1)[order].astype(np.int32)  # [num_tiles, 5]


def plan_shared_tiles(
    chunks: PrefillChunks, groups: SharedGroups, *, limits: TileLimits
) -> Int32Array:
    """Cut the queries of each group, as if they were one sequence's, into tiles over the pool.

    Args:
        chunks: The step.
        groups: Of its sequences.
        limits: Sizes of tiles and sections.

    Returns:
        [num_tiles, 5] as `plan_tiles` does. The position is the same for all queries of a tile:
        that of the last shared key.
    """
    query_starts = chunks.query_start_loc[groups.first_rows]
    index, first_query, num_queries = _cut(
        chunks.query_start_loc[groups.end_rows] - query_starts, limits
    )
    num_keys = groups.num_shared_keys
    section = _sections(num_keys, keys_per_section=limits.keys_per_section)
    order = np.lexsort((-num_keys[index], section[index]))
    columns = (
        query_starts[index] + first_query,
        num_queries,
        num_keys[index] - 1,
        chunks.table_starts[groups.first_rows][index],
        np.zeros_like(index),
    )
    return np.stack(columns, axis=1)[order].astype(np.int32)  # [num_tiles, 5]


def _cut(
    query_lens: npt.NDArray[np.integer], limits: TileLimits
) -> tuple[IntArray, IntArray, IntArray]:
    """Return each tile's entry of `query_lens`, its first query in it, its number of queries."""
    num_tiles = -(-query_lens // limits.queries_per_tile)
    index = np.repeat(np.arange(len(query_lens)), num_tiles)
    tile_of_entry = np.arange(len(index)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)
    first_query = tile_of_entry * limits.queries_per_tile
    return index, first_query, np.minimum(limits.queries_per_tile, query_lens[index] - first_query)


def _sections(num_keys: npt.NDArray[np.integer], *, keys_per_section: int) -> IntArray:
    """Return each sequence's section; the sequences with the most keys come first."""
    longest_first = np.argsort(-num_keys, kind="stable")
    section = np.empty(len(num_keys), dtype=np.int64)
    section[longest_first] = np.cumsum(num_keys[longest_first], dtype=np.int64) // keys_per_section
    return section
