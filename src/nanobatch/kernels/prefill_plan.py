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
) -> Int32Array:
    """Cut the queries of some sequences into tiles.

    A sequence's tiles begin at its own first query, so that what is computed for it does not
    depend on the sequences beside it.

    Args:
        chunks: The step.
        rows: [n] the sequences.
        source_starts: [num_seqs] where each sequence's keys begin, as the kernel counts.
        limits: Sizes of tiles and sections.

    Returns:
        [num_tiles, 4] in launch order: first query in the step, number of queries, position of
        the first query, where the sequence's keys begin.
    """
    query_lens = chunks.query_lens[rows]
    tiles_of_row = -(-query_lens // limits.queries_per_tile)
    index = np.repeat(np.arange(len(rows)), tiles_of_row)  # [num_tiles], into rows
    tile_in_row = np.arange(len(index)) - np.repeat(
        np.cumsum(tiles_of_row) - tiles_of_row, tiles_of_row
    )
    first_query = tile_in_row * limits.queries_per_tile
    num_queries = np.minimum(limits.queries_per_tile, query_lens[index] - first_query)
    first_position = chunks.first_positions[rows][index] + first_query
    section = _sections(chunks.seq_lens[rows], keys_per_section=limits.keys_per_section)
    order = np.lexsort((-(first_position + num_queries), section[index]))
    columns = (
        chunks.query_start_loc[rows][index] + first_query,
        num_queries,
        first_position,
        source_starts[rows][index],
    )
    return np.stack(columns, axis=1)[order].astype(np.int32)  # [num_tiles, 4]


def _sections(num_keys: Int32Array, *, keys_per_section: int) -> npt.NDArray[np.int64]:
    """Return each sequence's section; the sequences with the most keys come first."""
    longest_first = np.argsort(-num_keys, kind="stable")
    section = np.empty(len(num_keys), dtype=np.int64)
    section[longest_first] = np.cumsum(num_keys[longest_first], dtype=np.int64) // keys_per_section
    return section
