"""Sizes of decode steps for which a CUDA graph exists; a step runs in the next larger one.

Padding costs time where matrix products are bound by arithmetic, so sizes lie close together. But
cuBLAS takes other kernels for every size, and some sizes are slower than the next larger one: on
an H200 a layer of Qwen3-8B takes 169 µs for 224 rows and 161 µs for 256. Such sizes are left out.
"""

from bisect import bisect_left
from collections.abc import Sequence

SMALL_SIZES = (1, 2, 4, 8)
"""Below 16 rows a step costs what its weights cost."""
MEDIUM_SIZES = (*range(16, 209, 16), 256, 288, 320, 384)
LARGE_SIZES = (512, 576, 640, 768, 896, 960, 1024)
STEP_BEYOND = 256
"""From one size to the next above the last one measured."""


def row_buckets(max_num_rows: int) -> tuple[int, ...]:
    """Return the sizes of decode steps, ascending; the last one is `max_num_rows`."""
    sizes = (*SMALL_SIZES, *MEDIUM_SIZES, *LARGE_SIZES)
    beyond = range(sizes[-1] + STEP_BEYOND, max_num_rows, STEP_BEYOND)
    return (*(size for size in (*sizes, *beyond) if size < max_num_rows), max_num_rows)


def bucket_of(num_rows: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds so many rows; the largest holds them all."""
    return buckets[bisect_left(buckets, num_rows)]
