import numpy as np
import numpy.typing as npt
import pytest

from nanobatch.kernels.shared_runs import MIN_SAVED_TOKENS, SharedRun, find_shared_runs

BLOCK_SIZE = 16
IntArray = npt.NDArray[np.int64]


def find(tables: list[list[int]], shareable: list[int]) -> tuple[list[SharedRun], IntArray]:
    width = max(map(len, tables))
    padded = [[*table, *[-1] * (width - len(table))] for table in tables]
    return find_shared_runs(
        np.array(padded, np.int32), np.array(shareable, np.int64), block_size=BLOCK_SIZE
    )


def test_rows_with_the_same_beginning_share_one_run() -> None:
    tables = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 20 + row] for row in range(3)]
    runs, num_covered = find(tables, [10, 10, 10])
    assert [(run.rows.tolist(), run.block_ids.tolist()) for run in runs] == [
        ([0, 1, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9])
    ]
    assert num_covered.tolist() == [9, 9, 9]


def test_a_row_shares_no_block_that_it_may_not() -> None:
    tables = [list(range(30))] * 3
    runs, num_covered = find(tables, [30, 0, 25])
    assert [(run.rows.tolist(), len(run.block_ids)) for run in runs] == [([0, 2], 25)]
    assert num_covered.tolist() == [25, 0, 25]


def test_little_is_not_shared() -> None:
    num_blocks = MIN_SAVED_TOKENS // BLOCK_SIZE
    for length, expected in ((num_blocks - 1, 0), (num_blocks, 1)):
        tables = [[*range(length), 100 + row] for row in range(2)]
        assert len(find(tables, [length + 1] * 2)[0]) == expected


def test_a_run_has_at_least_the_length_that_is_asked_for() -> None:
    tables = np.array([[*range(9), 100 + row] for row in range(9)], np.int32)
    for min_run_tokens, expected in ((9 * BLOCK_SIZE, 1), (9 * BLOCK_SIZE + 1, 0)):
        runs, num_covered = find_shared_runs(
            tables, np.full(9, 10), block_size=BLOCK_SIZE, min_run_tokens=min_run_tokens
        )
        assert (len(runs), num_covered.tolist()) == (expected, [9 * expected] * 9)


def test_a_short_common_beginning_belongs_to_the_runs_after_it() -> None:
    """One block that two groups share is not worth a pass; each group's run begins with it."""
    tables = [[0, *range(group, group + 20)] for group in (100, 100, 200, 200)]
    runs, num_covered = find(tables, [21] * 4)
    assert sorted(run.block_ids.tolist()[:2] for run in runs) == [[0, 100], [0, 200]]
    assert num_covered.tolist() == [21] * 4


@pytest.mark.parametrize("seed", range(30))
def test_runs_cover_each_row_from_its_beginning_without_a_gap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = [list(rng.integers(0, 2, 6)) for _ in range(2)]
    for _ in range(int(rng.integers(1, 30))):
        parent = tables[int(rng.integers(len(tables)))]
        kept = int(rng.integers(len(parent) + 1))
        fresh = 1000 * len(tables) + np.arange(int(rng.integers(1, 20)))
        tables.append([*parent[:kept], *fresh.tolist()])
    shareable = [int(rng.integers(len(table) + 1)) for table in tables]
    runs, num_covered = find(tables, shareable)
    covered: list[list[int]] = [[] for _ in tables]
    for run in runs:
        assert (len(run.rows) - 1) * len(run.block_ids) * BLOCK_SIZE >= MIN_SAVED_TOKENS
        for row in run.rows.tolist():
            covered[row] += run.block_ids.tolist()
    for row, table in enumerate(tables):
        assert len(covered[row]) == num_covered[row] <= shareable[row]
        assert covered[row] == table[: len(covered[row])]
