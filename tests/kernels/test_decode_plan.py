from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobatch.kernels.decode_plan import (
    MAX_SPLIT_TOKENS,
    MAX_SPLITS_OF_A_ROW,
    DecodePlan,
    choose_split_tokens,
    plan_decode,
)


def lens_of(*lens: int) -> np.ndarray:
    return np.array(lens, np.int32)


def items_of(plan: DecodePlan) -> list[tuple[int, int]]:
    return list(zip(plan.item_rows.tolist(), plan.item_first_tokens.tolist(), strict=True))


def test_rows_are_cut_at_multiples_and_sorted_by_cost() -> None:
    plan = plan_decode(lens_of(40, 0, 16, 33, 7), split_tokens=16)
    assert items_of(plan) == [
        (0, 0),
        (0, 16),
        (3, 0),
        (3, 16),
        (2, 0),
        (0, 32),
        (4, 0),
        (3, 32),
        (1, 0),
    ]
    assert plan.row_num_splits.tolist() == [3, 1, 1, 3, 1]
    assert plan.num_partials == 6
    multi = np.isin(plan.item_rows, [0, 3])
    assert plan.item_partials[multi].tolist() == [0, 1, 3, 4, 2, 5]


@given(
    lens=st.lists(st.integers(0, 700), max_size=30),
    shift=st.integers(0, 8),
    window=st.none() | st.integers(1, 300),
    num_steps=st.integers(1, 20),
)
def test_every_key_that_a_step_sees_is_in_exactly_one_item(
    lens: list[int], shift: int, window: int | None, num_steps: int
) -> None:
    split_tokens = 1 << shift
    plan = plan_decode(
        lens_of(*lens), split_tokens=split_tokens, window=window, num_steps=num_steps
    )
    starts: dict[int, list[int]] = defaultdict(list)
    costs = []
    for row, first_token in items_of(plan):
        assert first_token % split_tokens == 0
        starts[row].append(first_token // split_tokens)
        costs.append(min(lens[row] - first_token, split_tokens))
    assert costs == sorted(costs, reverse=True)
    assert sorted(starts) == list(range(len(lens)))
    for row, splits in starts.items():
        first_seen = 0 if window is None else max(0, lens[row] - num_steps + 1 - window)
        first_split = first_seen // split_tokens
        end_split = max(-(-lens[row] // split_tokens), 1)
        assert sorted(splits) == list(range(first_split, end_split))
        assert plan.row_num_splits[row] == len(splits)


@st.composite
def sharing_rows(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draw lengths, 0 for padding, and below each the first key that is not shared."""
    lens = draw(st.lists(st.integers(0, 700), max_size=30))
    return lens, [draw(st.integers(0, max(n - 1, 0))) for n in lens]


@given(rows=sharing_rows(), shift=st.integers(0, 8))
def test_rows_that_share_keys_have_items_only_for_the_others(
    rows: tuple[list[int], list[int]], shift: int
) -> None:
    lens, firsts = rows
    split_tokens = 1 << shift
    plan = plan_decode(lens_of(*lens), split_tokens=split_tokens, first_tokens=lens_of(*firsts))
    expected = {
        row: [begin, *range((begin // split_tokens + 1) * split_tokens, end, split_tokens)]
        for row, (begin, end) in enumerate(zip(firsts, lens, strict=True))
    }
    starts: dict[int, list[int]] = defaultdict(list)
    costs, places = [], []
    for (row, first_token), place in zip(items_of(plan), plan.item_partials, strict=True):
        starts[row].append(first_token)
        following = (first_token // split_tokens + 1) * split_tokens
        costs.append(min(lens[row], following) - first_token)
        assert place == plan.row_partials[row] + first_token // split_tokens
        if len(expected[row]) > 1:
            places.append(int(place))
    assert {row: sorted(tokens) for row, tokens in starts.items()} == expected
    assert costs == sorted(costs, reverse=True)
    assert sorted(places) == list(range(plan.num_partials))
    assert plan.row_num_splits.tolist() == [len(expected[row]) for row in range(len(lens))]


@given(lens=st.lists(st.integers(0, 700), max_size=30))
def test_sharing_nothing_is_planned_like_no_sharing(lens: list[int]) -> None:
    plan = plan_decode(lens_of(*lens), split_tokens=64)
    other = plan_decode(lens_of(*lens), split_tokens=64, first_tokens=lens_of(*[0] * len(lens)))
    assert items_of(other) == items_of(plan)
    assert other.item_partials.tolist() == plan.item_partials.tolist()


def test_a_row_without_a_key_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a key that it does not share"):
        plan_decode(lens_of(40, 32), split_tokens=16, first_tokens=lens_of(32, 32))
    with pytest.raises(ValueError, match="must have a key that it does not share"):
        plan_decode(lens_of(40, 0), split_tokens=16, first_tokens=lens_of(32, 16))
    with pytest.raises(ValueError, match="sliding window cannot share"):
        plan_decode(lens_of(40), split_tokens=16, first_tokens=lens_of(32), window=8)


@given(lens=st.lists(st.integers(0, 700), max_size=30), window=st.none() | st.integers(1, 300))
def test_partial_results_have_places_of_their_own(lens: list[int], window: int | None) -> None:
    plan = plan_decode(lens_of(*lens), split_tokens=64, window=window)
    places = []
    for item, (row, first_token) in enumerate(items_of(plan)):
        assert plan.item_partials[item] == plan.row_partials[row] + first_token // 64
        if plan.row_num_splits[row] > 1:
            places.append(int(plan.item_partials[item]))
    assert sorted(places) == list(range(plan.num_partials))


def test_equal_costs_keep_the_order_of_rows_so_that_plans_repeat() -> None:
    lens = np.full(50, 100, np.int32)
    assert plan_decode(lens, split_tokens=128).item_rows.tolist() == list(range(50))


def test_no_rows_make_an_empty_plan() -> None:
    plan = plan_decode(lens_of(), split_tokens=64)
    assert (plan.num_items, plan.num_rows, plan.num_partials) == (0, 0, 0)


@pytest.mark.parametrize("split_tokens", [0, -16, 24, 2 * MAX_SPLIT_TOKENS])
def test_a_split_that_is_no_power_of_two_in_range_is_refused(split_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"power of two up to 32768, got {split_tokens}"):
        plan_decode(lens_of(1), split_tokens=split_tokens)


def test_few_rows_are_cut_finer_and_long_models_coarser() -> None:
    sizes = [choose_split_tokens(rows, max_model_len=4096) for rows in (1, 32, 64, 256, 1024)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    for max_model_len in (100, 40_960, 131_072, 1 << 20):
        split_tokens = choose_split_tokens(1, max_model_len=max_model_len)
        assert split_tokens * MAX_SPLITS_OF_A_ROW >= max_model_len
        plan_decode(lens_of(max_model_len), split_tokens=split_tokens)
