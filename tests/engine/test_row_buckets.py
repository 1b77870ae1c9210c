"""Sizes of decode steps."""

from itertools import pairwise

import pytest

from nanobatch.engine.row_buckets import bucket_of, row_buckets


def test_no_step_is_padded_by_more_than_half_beyond_the_smallest() -> None:
    sizes = row_buckets(3000)
    growth = [larger / smaller for smaller, larger in pairwise(sizes[4:])]
    assert max(growth[2:]) <= 1.5
    assert max(growth) == 2


@pytest.mark.parametrize("max_num_rows", [1, 3, 8, 100, 256, 1000, 1024, 3000])
def test_sizes_ascend_to_the_most_rows(max_num_rows: int) -> None:
    sizes = row_buckets(max_num_rows)
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[-1] == max_num_rows


def test_a_graph_exists_for_every_number_of_rows() -> None:
    buckets = row_buckets(300)
    chosen = [bucket_of(num_rows, buckets) for num_rows in range(1, 301)]
    assert all(bucket >= num_rows for num_rows, bucket in enumerate(chosen, 1))
    assert (chosen[0], chosen[8], chosen[208], chosen[299]) == (1, 16, 256, 300)
