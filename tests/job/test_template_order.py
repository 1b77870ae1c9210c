"""Which order shares most, compared with counting all beginnings of all orders."""

import random
from collections.abc import Sequence
from itertools import permutations, takewhile

import pytest

from nanobatch.job.template_order import (
    BLOCK_CHARS,
    MAX_PERMUTED,
    Order,
    RankedTexts,
    best_order,
    shared_chars,
)

Rows = Sequence[tuple[str, ...]]


def ranked(rows: Rows) -> list[RankedTexts]:
    return [RankedTexts(texts) for texts in zip(*rows, strict=True)]


def num_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Count leading characters: those of equal parts, and of the first parts that differ."""
    total = 0
    for part, other_part in zip(one, other, strict=True):
        pairs = zip(part, other_part, strict=False)
        total += len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        if part != other_part:
            break
    return total


def shared_by_brute_force(order: Order, rows: Rows, block_chars: int) -> int:
    """Sum up the full blocks that each row begins with as one of the rows before it does."""
    texts = [[row[part] for part in order] for row in rows]
    common = [
        max((num_common(text, earlier) for earlier in texts[:place]), default=0)
        for place, text in enumerate(texts)
    ]
    return sum(chars // block_chars * block_chars for chars in common)


def random_rows(seed: int, *, num_parts: int = 3) -> Rows:
    rng = random.Random(seed)

    def value() -> str:
        return "".join(rng.choice("ab") for _ in range(rng.randint(1, 6)))

    values = [[value() for _ in range(rng.randint(1, 20))] for _ in range(num_parts)]
    return [tuple(rng.choice(of_part) for of_part in values) for _ in range(30)]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("block_chars", [1, 3])
def test_an_order_shares_what_a_tree_of_its_texts_saves(seed: int, block_chars: int) -> None:
    rows = random_rows(seed)
    texts = ranked(rows)
    for num_parts in (1, 2, 3):
        for order in permutations(range(3), num_parts):
            expected = shared_by_brute_force(order, rows, block_chars)
            assert shared_chars(order, texts, block_chars=block_chars) == expected
            assert expected > 0


@pytest.mark.parametrize("seed", range(10))
def test_the_best_of_few_parts_is_the_best_of_all_orders(seed: int) -> None:
    rows = [tuple(part * BLOCK_CHARS for part in row) for row in random_rows(seed)]
    best = best_order(ranked(rows), 0.0)
    shared = {
        order: shared_by_brute_force(order, rows, BLOCK_CHARS) for order in permutations(range(3))
    }
    assert shared[best] == max(shared.values())


def test_of_orders_that_are_nearly_as_good_the_first_is_taken() -> None:
    """Of two parts that differ in every row, one happens to begin alike in two rows."""
    rows = [
        ("a" * 640, chr(200 + row) * 640, chr(200 + max(row, 1)) * BLOCK_CHARS + chr(300 + row))
        for row in range(20)
    ]
    texts = ranked(rows)
    assert best_order(texts, 0.0) == (0, 2, 1)
    assert best_order(texts, BLOCK_CHARS - 1.0) == (0, 2, 1)
    assert best_order(texts, float(BLOCK_CHARS)) == (0, 1, 2)


def test_of_many_parts_those_that_repeat_most_come_first() -> None:
    num_different = (100, 3, 100, 1, 9, 27)
    assert len(num_different) > MAX_PERMUTED
    rows = [
        tuple(f"{part}{row % count:03}" * 30 for part, count in enumerate(num_different))
        for row in range(100)
    ]
    assert best_order(ranked(rows), 0.0)[:4] == (3, 1, 4, 5)


def test_less_than_a_block_is_not_shared() -> None:
    rows = [("a" * (BLOCK_CHARS - 1), f"{row}" * 200) for row in range(3)]
    assert shared_chars((0, 1), ranked(rows)) == 0
    rows = [("a" * BLOCK_CHARS, f"{row}" * 200) for row in range(3)]
    assert shared_chars((0, 1), ranked(rows)) == 2 * BLOCK_CHARS
