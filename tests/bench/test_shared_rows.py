"""Sharing among rows, against a count of sets of beginnings."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobatch.bench.shared_rows import BLOCK_SIZE, order_by_sharing
from nanobatch.bench.workloads import Workload

# A few blocks in a few orders: beginnings of every depth, equal prompts, and no sharing at all.
PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=4), st.integers(1, BLOCK_SIZE)),
    min_size=1,
    max_size=12,
)


def prompt(blocks: list[int], num_tail: int) -> tuple[int, ...]:
    tokens = [token for block in blocks for token in [block] * BLOCK_SIZE]
    return (*tokens, *range(1000, 1000 + num_tail))


@settings(deadline=None)
@given(PROMPTS, st.data())
def test_sharing_is_that_of_the_rows_beginnings(
    shapes: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    prompts = tuple(prompt(blocks, num_tail) for blocks, num_tail in shapes)
    output_lens = tuple(data.draw(st.integers(1, 9)) for _ in prompts)
    rows = order_by_sharing(Workload(name="x", prompts=prompts, output_lens=output_lens))
    assert sorted(zip(rows.prompt_lens.tolist(), rows.output_lens.tolist(), strict=True)) == sorted(
        (len(each), output_len) for each, output_len in zip(prompts, output_lens, strict=True)
    )
    ordered = sorted_as(prompts, rows.prompt_lens.tolist(), output_lens)
    picked = data.draw(st.sets(st.integers(0, len(prompts) - 1)))
    running = np.array(sorted(picked), dtype=np.int64)
    expected = sharing([ordered[row] for row in running])
    assert rows.sharing_of(running) == expected


def sorted_as(
    prompts: tuple[tuple[int, ...], ...], lens: list[int], output_lens: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Return prompts in the documented order: longest output of the first block, then ids."""
    longest: dict[tuple[int, ...], int] = {}
    for each, output_len in zip(prompts, output_lens, strict=True):
        longest[each[:BLOCK_SIZE]] = max(output_len, longest.get(each[:BLOCK_SIZE], 0))
    ordered = sorted(prompts, key=lambda each: (-longest[each[:BLOCK_SIZE]], each))
    assert [len(each) for each in ordered] == lens
    return ordered


def sharing(prompts: list[tuple[int, ...]]) -> tuple[int, int, int]:
    """Count blocks that several prompts begin with."""
    beginnings = [
        [each[: end * BLOCK_SIZE] for end in range(1, len(each) // BLOCK_SIZE + 1)]
        for each in prompts
    ]
    counts = Counter(beginning for each in beginnings for beginning in each)
    num_shared = [sum(counts[beginning] > 1 for beginning in each) for each in beginnings]
    num_distinct = sum(count > 1 for count in counts.values())
    return num_distinct * BLOCK_SIZE, sum(num_shared) * BLOCK_SIZE, sum(map(bool, num_shared))
