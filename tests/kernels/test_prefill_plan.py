import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobatch.kernels.prefill_plan import (
    PrefillChunks,
    SharedGroups,
    TileLimits,
    plan_shared_tiles,
    plan_tiles,
)

ONE_SECTION = 1 << 20


def chunks_of(*lens: tuple[int, int]) -> PrefillChunks:
    """Return a step of (cached, new) sequences whose tables have one block per 16 keys."""
    num_blocks = [-(-(cached + new) // 16) for cached, new in lens]
    return PrefillChunks(
        query_start_loc=np.cumsum([0, *(new for _, new in lens)], dtype=np.int32),
        seq_lens=np.array([cached + new for cached, new in lens], dtype=np.int32),
        block_ids=np.arange(sum(num_blocks), dtype=np.int32),
        table_starts=np.cumsum([0, *num_blocks[:-1]], dtype=np.int32),
    )


def tiles_of(
    chunks: PrefillChunks, *, queries_per_tile: int, keys_per_section: int = ONE_SECTION
) -> list[list[int]]:
    limits = TileLimits(queries_per_tile=queries_per_tile, keys_per_section=keys_per_section)
    rows = np.arange(chunks.num_seqs)
    tiles = plan_tiles(chunks, rows, source_starts=chunks.table_starts, limits=limits)
    assert tiles.dtype == np.int32
    return [[int(number) for number in tile] for tile in tiles]


def test_tiles_say_queries_positions_and_table_longest_first() -> None:
    chunks = chunks_of((0, 5), (32, 3))
    assert tiles_of(chunks, queries_per_tile=2) == [
        [7, 1, 34, 1, 0],
        [5, 2, 32, 1, 0],
        [4, 1, 4, 0, 0],
        [2, 2, 2, 0, 0],
        [0, 2, 0, 0, 0],
    ]


def test_tiles_cover_only_the_rows_asked_for() -> None:
    chunks = chunks_of((0, 3), (16, 2), (0, 1))
    limits = TileLimits(queries_per_tile=4, keys_per_section=ONE_SECTION)
    starts = chunks.query_start_loc[:-1]
    tiles = plan_tiles(chunks, np.array([0, 2]), source_starts=starts, limits=limits)
    assert tiles.tolist() == [[0, 3, 0, 0, 0], [5, 1, 0, 5, 0]]


def test_no_rows_give_no_tiles() -> None:
    limits = TileLimits(queries_per_tile=4, keys_per_section=ONE_SECTION)
    chunks = chunks_of((0, 3))
    no_rows = np.empty(0, dtype=np.int64)
    tiles = plan_tiles(chunks, no_rows, source_starts=chunks.table_starts, limits=limits)
    assert tiles.shape == (0, 5)


def test_sections_keep_the_tiles_of_few_sequences_together() -> None:
    chunks = chunks_of((0, 4), (0, 4), (0, 8))
    tiles = tiles_of(chunks, queries_per_tile=4, keys_per_section=13)
    assert [first_query for first_query, *_ in tiles] == [12, 0, 8, 4]


def test_tiles_go_on_where_shared_keys_end_most_own_keys_first() -> None:
    chunks = chunks_of((32, 3), (64, 2))
    limits = TileLimits(queries_per_tile=2, keys_per_section=ONE_SECTION)
    tiles = plan_tiles(
        chunks,
        np.array([0, 1]),
        source_starts=chunks.table_starts,
        limits=limits,
        first_keys=np.array([16, 64]),
    )
    assert tiles.tolist() == [[2, 1, 34, 0, 16], [0, 2, 32, 0, 16], [3, 2, 64, 3, 64]]


def test_tiles_of_groups_run_over_the_ends_of_sequences() -> None:
    chunks = chunks_of((0, 1), (32, 3), (32, 2), (0, 4), (16, 1), (16, 1))
    groups = SharedGroups(
        first_rows=np.array([1, 4]), end_rows=np.array([3, 6]), num_shared_keys=np.array([32, 16])
    )
    limits = TileLimits(queries_per_tile=2, keys_per_section=ONE_SECTION)
    tiles = plan_shared_tiles(chunks, groups, limits=limits)
    first, second = chunks.table_starts[[1, 4]]
    assert tiles.dtype == np.int32
    assert tiles.tolist() == [
        [1, 2, 31, first, 0],
        [3, 2, 31, first, 0],
        [5, 1, 31, first, 0],
        [10, 2, 15, second, 0],
    ]


def test_groups_say_what_each_sequence_shares() -> None:
    groups = SharedGroups(
        first_rows=np.array([1, 4]), end_rows=np.array([3, 6]), num_shared_keys=np.array([32, 16])
    )
    assert groups.shared_keys_of_rows(7).tolist() == [0, 32, 32, 0, 16, 16, 0]
    assert SharedGroups.none().shared_keys_of_rows(2).tolist() == [0, 0]


@given(
    lens=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=12),
    queries_per_tile=st.integers(1, 33),
    keys_per_section=st.integers(1, 200),
)
def test_tiles_cover_every_query_once_at_its_position(
    lens: list[tuple[int, int]], queries_per_tile: int, keys_per_section: int
) -> None:
    chunks = chunks_of(*lens)
    tiles = tiles_of(chunks, queries_per_tile=queries_per_tile, keys_per_section=keys_per_section)
    covered = [
        (first_query + offset, first_position + offset, table_start)
        for first_query, num_queries, first_position, table_start, _ in tiles
        for offset in range(num_queries)
    ]
    expected = [
        (chunks.query_start_loc[row] + offset, cached + offset, chunks.table_starts[row])
        for row, (cached, new) in enumerate(lens)
        for offset in range(new)
    ]
    assert sorted(covered) == sorted(expected)
    assert all(0 < num_queries <= queries_per_tile for _, num_queries, *_ in tiles)


def test_sequences_without_a_cached_beginning_are_fresh() -> None:
    assert chunks_of((0, 3), (16, 2), (0, 1)).is_fresh.tolist() == [True, False, True]


def test_last_queries_stand_at_the_ends_and_read_the_pool() -> None:
    last = chunks_of((0, 3), (16, 2), (0, 17)).last_queries(np.array([0, 2]))
    assert last.query_lens.tolist() == [1, 1]
    assert last.first_positions.tolist() == [2, 16]
    assert last.table_starts.tolist() == [0, 3]
    assert last.is_fresh.tolist() == [False, False]


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_a_prompt_of_one_token_is_not_fresh_among_last_queries(num_tokens: int) -> None:
    chunks = chunks_of((0, num_tokens))
    assert chunks.is_fresh.tolist() == [True]
    assert chunks.last_queries(np.array([0])).is_fresh.tolist() == [False]
