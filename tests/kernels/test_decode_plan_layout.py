import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobatch.kernels.decode_plan import plan_decode
from nanobatch.kernels.decode_plan_layout import DecodePlanLayout, most_shared_items
from nanobatch.kernels.shared_items import SharedItems


def lens_of(*lens: int) -> np.ndarray:
    return np.array(lens, np.int32)


def shared_items(num_items: int, num_rows: int) -> SharedItems:
    """Return items whose every number is another one."""
    numbers = iter(range(100, 100 + 5 * num_items + 2 * num_rows))
    columns = [lens_of(*[next(numbers) for _ in range(num_items)]) for _ in range(5)]
    row_columns = [lens_of(*[next(numbers) for _ in range(num_rows)]) for _ in range(2)]
    return SharedItems(
        item_first_rows=columns[0],
        item_num_rows=columns[1],
        item_first_tokens=columns[2],
        item_end_tokens=columns[3],
        item_partials=columns[4],
        row_num_partials=row_columns[0],
        row_first_tokens=row_columns[1],
    )


@given(
    lens=st.lists(st.integers(0, 1000), min_size=1, max_size=30),
    split_tokens=st.sampled_from([16, 64, 256, 1024]),
)
def test_any_plan_within_the_bounds_fits_its_layout(lens: list[int], split_tokens: int) -> None:
    plan = plan_decode(lens_of(*lens), split_tokens=split_tokens)
    layout = DecodePlanLayout.for_bucket(
        len(lens), split_tokens=split_tokens, max_model_len=1000, max_total_tokens=sum(lens)
    )
    words = np.full(layout.num_words, -7, np.int32)
    layout.pack(plan, words)
    rows, first_tokens, partials, row_partials = layout.starts[:4]
    num_items = int(words[0])
    assert num_items == plan.num_items
    assert np.array_equal(words[rows : rows + num_items], plan.item_rows)
    assert np.array_equal(words[first_tokens : first_tokens + num_items], plan.item_first_tokens)
    assert np.array_equal(words[partials : partials + num_items], plan.item_partials)
    assert np.array_equal(words[row_partials : row_partials + len(lens)], plan.row_partials)


def test_a_plan_that_does_not_fit_is_refused() -> None:
    layout = DecodePlanLayout(max_rows=2, max_items=5, max_partials=3, split_tokens=16)
    words = np.zeros(layout.num_words, np.int32)
    for lens, message in (
        ((60, 40), "7 items, its buffer holds 5"),
        ((60,), "4 partial results, its buffer holds 3"),
        ((1, 1, 1), "3 rows, its buffer holds 2"),
    ):
        with pytest.raises(ValueError, match=message):
            layout.pack(plan_decode(lens_of(*lens), split_tokens=16), words)
    with pytest.raises(ValueError, match="cut at 32 tokens, the layout at 16"):
        layout.pack(plan_decode(lens_of(1), split_tokens=32), words)


def test_short_models_need_no_room_for_partial_results() -> None:
    layout = DecodePlanLayout.for_bucket(
        256, split_tokens=1024, max_model_len=1024, max_total_tokens=10**6
    )
    assert (layout.max_items, layout.max_partials) == (256, 0)


@pytest.mark.parametrize("num_items", [0, 1, 12])
def test_shared_items_lie_beside_the_plan(num_items: int) -> None:
    plan = plan_decode(lens_of(40, 100, 7), split_tokens=16)
    sizes = {"split_tokens": 16, "max_model_len": 100, "max_total_tokens": 150}
    layout = DecodePlanLayout.for_bucket(3, **sizes, max_shared_items=most_shared_items(3))
    shared = shared_items(num_items, 3)
    words = np.full(layout.num_words, -7, np.int32)
    layout.pack(plan, words, shared=shared)
    assert words[:2].tolist() == [plan.num_items, num_items]
    starts = layout.starts
    for start, array in (
        (starts.item_rows, plan.item_rows),
        (starts.item_first_tokens, plan.item_first_tokens),
        (starts.item_partials, plan.item_partials),
        (starts.row_partials, plan.row_partials),
        (starts.row_first_tokens, shared.row_first_tokens),
        (starts.row_num_partials, shared.row_num_partials),
        (starts.shared_first_rows, shared.item_first_rows),
        (starts.shared_num_rows, shared.item_num_rows),
        (starts.shared_first_tokens, shared.item_first_tokens),
        (starts.shared_end_tokens, shared.item_end_tokens),
        (starts.shared_partials, shared.item_partials),
    ):
        assert np.array_equal(words[start : start + len(array)], array)
    assert all(start % 16 == 0 for start in starts)
    with pytest.raises(ValueError, match="13 shared items, its buffer holds 12"):
        layout.pack(plan, words, shared=shared_items(13, 3))


def test_a_layout_without_room_for_sharing_is_as_small_as_ever() -> None:
    sizes = {"split_tokens": 16, "max_model_len": 100, "max_total_tokens": 150}
    layout = DecodePlanLayout.for_bucket(3, **sizes)
    assert layout.num_words == layout.starts.row_partials + 16
    words = np.zeros(layout.num_words, np.int32)
    plan = plan_decode(lens_of(40), split_tokens=16)
    layout.pack(plan, words, shared=shared_items(0, 1))
    with pytest.raises(ValueError, match="1 shared items, its buffer holds 0"):
        layout.pack(plan, words, shared=shared_items(1, 1))
