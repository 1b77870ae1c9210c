"""Sizes of decode steps for which a CUDA graph exists; a step runs in the next larger one.

Padding costs time where matrix products are bound by arithmetic, so sizes grow by about a tenth;
below 16 rows, where a step costs what its weights cost, by factors of two.
"""

from bisect import bisect_left
from collections.abc import Sequence

SMALL_SIZES = (1, 2, 4, 8)
SIZE_STEPS = ((256, 16), (512, 32), (1024, 64))
"""Up to each size, the distance from one size to the next; above the last one twice as far."""


def row_buckets(max_num_rows: int) -> tuple[int, ...]:
    """Return the sizes of decode steps, ascending; the last one is `max_num_rows`."""
    sizes = [*SMALL_SIZES]
    for limit, step in SIZE_STEPS:
        sizes += range((sizes[-1] // step + 1) * step, limit + 1, step)
    largest, step = SIZE_STEPS[-1]
    sizes += range(largest + 2 * step, max_num_rows, 2 * step)
    return (*(size for size in sizes if size < max_num_rows), max_num_rows)


def bucket_of(num_rows: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds so many rows; the largest holds them all."""
    return buckets[bisect_left(buckets, num_rows)]
