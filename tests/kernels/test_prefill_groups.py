from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobatch.kernels.prefill_groups import GroupCosts, find_shared_groups
from nanobatch.kernels.prefill_plan import PrefillChunks

BLOCK_SIZE = 4
COSTS = GroupCosts(
    rows_per_query=2,
    tile_rows=16,
    key_s=1.0,
    rest_tile_rows=8,
    rest_key_s=2.0,
    row_s=10.0,
    step_s=0.0,
)
FREE = replace(COSTS, rest_key_s=0.0, row_s=0.0)

Table = tuple[int, ...]
Group = tuple[int, int, int]


def chunks_of(*rows: tuple[Table, int]) -> PrefillChunks:
    """Return a step of sequences with (cached blocks, new tokens); new tokens have own blocks."""
    tables, fresh_block = [], 1000
    for cached, new in rows:
        num_own = -(-new // BLOCK_SIZE)
        tables.append([*cached, *range(fresh_block, fresh_block + num_own)])
        fresh_block += num_own
    return PrefillChunks(
        query_start_loc=np.cumsum([0, *(new for _, new in rows)], dtype=np.int32),
        seq_lens=np.array([len(cached) * BLOCK_SIZE + new for cached, new in rows], np.int32),
        block_ids=np.concatenate(tables).astype(np.int32),
        table_starts=np.cumsum([0, *(len(table) for table in tables[:-1])], dtype=np.int32),
    )


def groups_of(
    chunks: PrefillChunks, *, costs: GroupCosts = COSTS, keys_multiple: int = BLOCK_SIZE
) -> list[Group]:
    groups = find_shared_groups(
        chunks, block_size=BLOCK_SIZE, keys_multiple=keys_multiple, costs=costs
    )
    columns = (groups.first_rows, groups.end_rows, groups.num_shared_keys)
    return [(int(first), int(end), int(keys)) for first, end, keys in zip(*columns, strict=True)]


BEGINNING = tuple(range(100, 120))


def test_short_chunks_over_one_beginning_are_a_group() -> None:
    chunks = chunks_of(((), 5), (BEGINNING, 2), (BEGINNING, 1), (BEGINNING, 3), ((7,), 2))
    assert groups_of(chunks) == [(1, 4, 80)]


def test_nothing_shared_gives_no_groups() -> None:
    assert groups_of(chunks_of(((), 5), ((1, 2), 2), ((3, 4), 2))) == []
    assert groups_of(chunks_of((BEGINNING, 2))) == []


def test_blocks_of_equal_ids_at_other_places_are_not_shared() -> None:
    moved = (1, *BEGINNING)
    assert groups_of(chunks_of((BEGINNING, 2), (moved, 2)), costs=FREE) == []


def test_a_beginning_that_this_step_computes_is_shared_by_those_after_it() -> None:
    chunks = chunks_of(((), 80), (BEGINNING, 2), (BEGINNING, 2))
    chunks.block_ids[:20] = BEGINNING
    assert groups_of(chunks) == [(1, 3, 80)]


def test_a_first_query_inside_a_block_shares_the_blocks_before() -> None:
    chunks = chunks_of((BEGINNING[:18], 2), (BEGINNING[:18], 2))
    chunks = replace(chunks, seq_lens=chunks.seq_lens - 1)  # both begin in their 18th block
    assert groups_of(chunks, costs=FREE) == [(0, 2, 68)]


def test_groups_share_multiples_of_what_the_kernel_walks_in() -> None:
    chunks = chunks_of((BEGINNING[:15], 1), (BEGINNING[:15], 1))
    assert groups_of(chunks, costs=FREE, keys_multiple=32) == [(0, 2, 32)]
    assert groups_of(chunks, costs=FREE, keys_multiple=64) == []


def test_chunks_that_fill_their_tiles_are_computed_alone() -> None:
    full = COSTS.tile_rows // COSTS.rows_per_query
    assert groups_of(chunks_of((BEGINNING, full), (BEGINNING, full))) == []


def test_a_long_chunk_between_short_ones_separates_them() -> None:
    rows = [(BEGINNING, 1)] * 2 + [(BEGINNING, 800)] + [(BEGINNING, 1)] * 2
    assert groups_of(chunks_of(*rows)) == [(0, 2, 80), (3, 5, 80)]


def test_many_rows_over_little_beat_few_rows_over_more_where_they_save_more() -> None:
    deep = [((*BEGINNING[:19], row // 2), 1) for row in range(8)]
    assert groups_of(chunks_of(*deep)) == [(0, 8, 76)]
    shallow = [((*BEGINNING[:4], *[row // 2] * 16), 1) for row in range(8)]
    assert groups_of(chunks_of(*shallow)) == [(0, 2, 80), (2, 4, 80), (4, 6, 80), (6, 8, 80)]


@pytest.mark.parametrize(("step_s", "num_groups"), [(1239.0, 1), (1240.0, 0)])
def test_groups_must_save_more_than_their_launches(step_s: float, num_groups: int) -> None:
    # A key costs 16 s alone for each of two chunks, 16 s together; to merge costs 10 s for each of
    # their 2 rows; an own key costs 8 x 2 s where it was 16 x 1 s: 32 x 80 - 16 x 80 - 4 x 10.
    chunks = chunks_of((BEGINNING, 1), (BEGINNING, 1))
    assert len(groups_of(chunks, costs=replace(COSTS, step_s=step_s))) == num_groups


def saving_of(chunks: PrefillChunks, group: Group) -> float:
    """Compute what a group saves, chunk by chunk."""
    first, end, num_keys = group
    saved_s = 0.0
    for row in range(first, end):
        num_rows = int(chunks.query_lens[row]) * COSTS.rows_per_query
        alone = -(-num_rows // COSTS.tile_rows) * COSTS.tile_rows * COSTS.key_s
        own = -(-num_rows // COSTS.rest_tile_rows) * COSTS.rest_tile_rows * COSTS.rest_key_s
        own_keys = chunks.seq_lens[row] - (chunks.query_lens[row] - 1) / 2 - num_keys
        saved_s += alone * num_keys + (alone - own) * own_keys - num_rows * COSTS.row_s
    num_rows = int(chunks.query_lens[first:end].sum()) * COSTS.rows_per_query
    return saved_s - -(-num_rows // COSTS.tile_rows) * COSTS.tile_rows * COSTS.key_s * num_keys


def common_keys(tables: list[Table]) -> int:
    num_blocks = 0
    while all(len(table) > num_blocks for table in tables) and (
        len({table[num_blocks] for table in tables}) == 1
    ):
        num_blocks += 1
    return num_blocks * BLOCK_SIZE


def shared_by_neighbours(chunks: PrefillChunks, tables: list[Table]) -> list[int]:
    """Return the keys that each row shares with the one before, 0 around one that cannot gain."""
    shared = [0, *(common_keys([*pair]) for pair in pairwise(tables)), 0]
    gains = []
    for row, keys in enumerate(map(max, pairwise(shared))):
        num_rows = int(chunks.query_lens[row]) * COSTS.rows_per_query
        unused_s = (-num_rows % COSTS.tile_rows) * COSTS.key_s * keys
        gains.append(saving_of(chunks, (row, row + 1, keys)) + unused_s > 0)
    return [
        keys if row and gains[row - 1] and gains[row] else 0 for row, keys in enumerate(shared[:-1])
    ]


def best_saving(chunks: PrefillChunks, shared: list[int], first: int, end: int) -> float:
    """Choose between a node and its children, from the top of the tree down."""
    if end - first < 2:
        return 0.0
    num_keys = min(shared[first + 1 : end])
    borders = [first, *(row for row in range(first + 1, end) if shared[row] == num_keys), end]
    inner = sum(best_saving(chunks, shared, start, stop) for start, stop in pairwise(borders))
    return max(inner, saving_of(chunks, (first, end, num_keys)) if num_keys else 0.0)


blocks = st.lists(st.integers(0, 1), max_size=6)


@given(rows=st.lists(st.tuples(blocks, st.integers(1, 4)), min_size=1, max_size=12))
def test_groups_are_valid_and_the_best_of_the_tree(rows: list[tuple[list[int], int]]) -> None:
    # A block's id names all blocks up to it, as in a prefix cache.
    tables = [
        tuple(int("1" + "".join(map(str, cached[: depth + 1])), 2) for depth in range(len(cached)))
        for cached, _ in sorted(rows)
    ]
    chunks = chunks_of(*zip(tables, (new for _, new in sorted(rows)), strict=True))
    groups = groups_of(chunks)
    assert all(end - first >= 2 for first, end, _ in groups)
    assert [first for first, *_ in groups] == sorted(first for first, *_ in groups)
    assert all(before[1] <= after[0] for before, after in pairwise(groups))
    assert all(0 < keys <= common_keys(tables[first:end]) for first, end, keys in groups)
    assert all(saving_of(chunks, group) > 0 for group in groups)
    best = best_saving(chunks, shared_by_neighbours(chunks, tables), 0, len(tables))
    assert sum(saving_of(chunks, group) for group in groups) == pytest.approx(best)
