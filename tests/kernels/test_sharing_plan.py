"""What is read once for several rows: chosen by cost, covering every row's keys exactly once."""

import random
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest

from nanobatch.kernels.shared_items import MAX_SHARED_PARTIALS, SharedItems
from nanobatch.kernels.sharing_costs import SharingCosts
from nanobatch.kernels.sharing_plan import SharingPlan, plan_sharing

BLOCK = 16
COSTS = SharingCosts(
    block_size=BLOCK,
    max_rows_of_item=64,
    num_parallel_items=33.0,
    partial_keys=37.0,
    step_keys=9000.0,
)
EAGER = SharingCosts(
    block_size=BLOCK, max_rows_of_item=4, num_parallel_items=3.0, partial_keys=0.0, step_keys=0.0
)
NO_LIMIT = 10_000


def common_blocks(tables: list[tuple[int, ...]]) -> np.ndarray:
    """Count what neighbours have in common, block by block."""
    counts = [0]
    for before, table in pairwise(tables):
        pairs = zip(before, table, strict=False)
        same = [one == other for one, other in pairs]
        counts.append(same.index(False) if False in same else len(same))
    return np.array(counts, dtype=np.int32)


def groups(*shapes: tuple[int, int]) -> np.ndarray:
    """Return what neighbours share in groups of (rows, tokens)."""
    counts = [[0] + [num_tokens // BLOCK] * (num_rows - 1) for num_rows, num_tokens in shapes]
    return np.array([*chain.from_iterable(counts)], dtype=np.int32)


def planned(num_shared_blocks: np.ndarray, costs: SharingCosts = COSTS) -> SharingPlan:
    plan = plan_sharing(num_shared_blocks, costs, max_items=NO_LIMIT)
    assert plan is not None
    return plan


def saved(plan: SharingPlan) -> int:
    """Return what one step of all rows saves."""
    return plan.num_saved_tokens(np.ones(len(plan.items.row_num_partials), dtype=np.int32))


def ranges_of_rows(items: SharedItems) -> list[list[tuple[int, int]]]:
    """Return by row the (first, end) of its partial results in their order."""
    places: list[dict[int, tuple[int, int]]] = [{} for _ in items.row_num_partials]
    for first_row, num_rows, first, end, partial in zip(
        items.item_first_rows,
        items.item_num_rows,
        items.item_first_tokens,
        items.item_end_tokens,
        items.item_partials,
        strict=True,
    ):
        for row in range(first_row, first_row + num_rows):
            assert partial not in places[row], "two items make the same partial result"
            places[row][int(partial)] = (int(first), int(end))
    return [[row[place] for place in sorted(row)] for row in places]


def check(num_shared_blocks: np.ndarray, tables: list[tuple[int, ...]], plan: SharingPlan) -> None:
    """Every row's ranges adjoin from 0 on, and hold the same blocks in all rows of an item."""
    items = plan.items
    for row, ranges in enumerate(ranges_of_rows(items)):
        assert len(ranges) == items.row_num_partials[row] <= MAX_SHARED_PARTIALS
        end_before = 0
        for first, end in ranges:
            assert first == end_before < end and first % BLOCK == end % BLOCK == 0
            end_before = end
        assert end_before == items.row_first_tokens[row]
    for first_row, num_rows, end in zip(
        items.item_first_rows, items.item_num_rows, items.item_end_tokens, strict=True
    ):
        beginnings = {tables[row][: end // BLOCK] for row in range(first_row, first_row + num_rows)}
        assert len(beginnings) == 1 and len(beginnings.pop()) == end // BLOCK
    lengths = items.item_end_tokens - items.item_first_tokens
    assert (np.diff(lengths) <= 0).all(), "the longest item goes first"


def test_a_system_prompt_of_many_rows_is_read_once() -> None:
    plan = planned(groups((1000, 2048)))
    assert saved(plan) == 999 * 2048
    assert (plan.items.row_first_tokens == 2048).all()
    items = plan.items
    rows = {*zip(items.item_first_rows.tolist(), items.item_num_rows.tolist(), strict=True)}
    assert rows == {(64 * tile, min(64, 1000 - 64 * tile)) for tile in range(16)}


def test_rows_that_end_early_save_less() -> None:
    plan = planned(groups((1000, 2048)))
    num_steps = np.full(1000, 4, dtype=np.int32)
    num_steps[:250] = 1
    assert plan.num_saved_tokens(num_steps) == (250 + 4 * 750 - 4) * 2048
    num_steps[:] = 0
    num_steps[0] = 1
    assert plan.num_saved_tokens(num_steps) == 0


def test_rows_that_share_nothing_have_no_plan() -> None:
    assert plan_sharing(groups((1, 0), (1, 0)), COSTS, max_items=NO_LIMIT) is None
    assert plan_sharing(np.zeros(0, dtype=np.int32), COSTS, max_items=NO_LIMIT) is None


def test_short_beginnings_are_not_worth_it() -> None:
    assert plan_sharing(groups(*[(2, 16)] * 500), COSTS, max_items=NO_LIMIT) is None
    assert planned(groups(*[(20, 256)] * 50)).items.row_first_tokens.min() == 256


def test_a_group_too_small_is_left_alone_beside_one_that_is_not() -> None:
    items = planned(groups((200, 1024), (2, 16), (1, 0))).items
    assert items.row_first_tokens.tolist() == [1024] * 200 + [0] * 3


def test_a_level_that_saves_little_is_left_to_the_levels_below() -> None:
    """Two groups of 100 rows have one block in common, then 1,024 tokens each of their own."""
    counts = groups((100, 1040), (100, 1040))
    counts[100] = 1
    items = planned(counts).items
    assert (items.item_first_tokens[items.item_partials == 0] == 0).all()
    assert (items.item_num_rows <= 64).all() and (items.row_first_tokens == 1040).all()


def test_three_levels_are_each_read_once() -> None:
    """4,000 tokens for all, 1,024 for each of 20 sets, 640 for each of 4 documents with 8 rows."""
    system, examples, document = 250, 64, 40
    counts = np.full(640, system + examples + document, dtype=np.int32)
    counts[::8] = system + examples
    counts[::32] = system
    counts[0] = 0
    plan = planned(counts)
    assert saved(plan) == BLOCK * (639 * system + 20 * 31 * examples + 80 * 7 * document)
    assert (plan.items.row_first_tokens == (system + examples + document) * BLOCK).all()


def test_a_level_whose_children_fill_their_tiles_is_left_to_them() -> None:
    """Four sets of 64 rows take as many tiles together as each for itself."""
    counts = groups(*[(64, 1520)] * 4)
    counts[64::64] = 62
    items = planned(counts).items
    assert items.row_num_partials.tolist() == [items.row_num_partials[0]] * 256
    assert saved(planned(counts)) == 4 * 63 * 1520


def test_few_rows_are_cut_by_tokens_to_occupy_the_device() -> None:
    def num_ranges(num_rows: int) -> int:
        return int(planned(groups((num_rows, 4096))).items.row_num_partials.max())

    assert num_ranges(40) == MAX_SHARED_PARTIALS
    assert 1 <= num_ranges(2000) < 3


def test_too_many_items_share_nothing() -> None:
    counts = groups(*[(40, 1024)] * 25)
    num_items = planned(counts).items.num_items
    assert plan_sharing(counts, COSTS, max_items=num_items) is not None
    assert plan_sharing(counts, COSTS, max_items=num_items - 1) is None


def random_tables(random_: random.Random, num_rows: int) -> list[tuple[int, ...]]:
    """Return sorted tables that branch anywhere; each ends in a block of its own."""
    tables: list[tuple[int, ...]] = []
    for row in range(num_rows):
        base = random_.choice(tables) if tables and random_.random() < 0.8 else ()
        length = random_.randrange(len(base) + 1)
        fresh = [1000 * row + place for place in range(random_.choice([0, 1, 3, 40, 200]))]
        tables.append((*base[:length], *fresh, 10**6 + row))
    return sorted(tables)


@pytest.mark.parametrize("costs", [replace(COSTS, step_keys=0.0), EAGER], ids=["measured", "eager"])
def test_random_trees_are_covered_exactly(costs: SharingCosts) -> None:
    random_, num_plans = random.Random(0), 0
    for _ in range(400):
        tables = random_tables(random_, random_.choice([2, 5, 30, 120]))
        counts = common_blocks(tables)
        plan = plan_sharing(counts, costs, max_items=NO_LIMIT)
        if plan is not None:
            num_plans += 1
            check(counts, tables, plan)
    assert num_plans > 50


def test_a_chain_of_ever_deeper_rows_has_few_levels() -> None:
    tables = [(*range(depth), 10**6 + depth) for depth in range(0, 600, 2)]
    counts = common_blocks(tables)
    check(counts, tables, planned(counts, EAGER))


def test_what_sharing_costs_depends_on_the_size_of_a_key() -> None:
    def costs(head_dim: int) -> SharingCosts:
        return SharingCosts.of_heads(
            num_kv_heads=8,
            head_dim=head_dim,
            element_bytes=2,
            block_size=BLOCK,
            max_rows_of_item=32,
            num_programs=264,
        )

    assert costs(64).partial_keys == 2 * costs(128).partial_keys
    assert costs(128).num_parallel_items == 33.0
    small = {"num_rows": 4, "unshared_cost": 4, "num_tokens": 256}
    assert costs(64).gain(**small) < costs(128).gain(**small)
