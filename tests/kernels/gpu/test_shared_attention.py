from dataclasses import replace

import numpy as np
import pytest
import torch

from nanobatch.kernels.gpu.decode_attention import decode_attention
from nanobatch.kernels.gpu.decode_tuning import DecodeTuning, Schedule
from nanobatch.kernels.gpu.shared_attention import (
    SHARED_TUNING,
    SharedTuning,
    attend_to_shared,
    max_item_rows,
)
from nanobatch.kernels.shared_items import MAX_SHARED_PARTIALS
from tests.kernels.gpu.shared_steps import SCALE, Case, Row, Step


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what the launcher allocates with NaN: an element left out shows."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        return empty(*args, **kwargs).fill_(torch.nan)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", poisoned)


THREE_LEVELS = Case(
    rows=(
        Row(path="ABC", own=1),
        Row(path="ABC", own=70),
        Row(path="ABD", own=16),
        Row(path="AB", own=5),
        Row(path="AE", own=17),
        Row(path="AE", own=3),
        Row(path="A", own=33),
        Row(own=40),
        Row(path="F", own=2),
        Row(path="F", own=9),
        Row(own=100),
    ),
    segment_blocks={"A": 3, "B": 2, "C": 1, "D": 1, "E": 4, "F": 1},
    num_heads=4,
    num_kv_heads=2,
)
PAIR = (Row(path="A", own=7), Row(path="A", own=20), Row(path="A", own=1))
CASES = {
    "three_levels": THREE_LEVELS,
    "queue": Case(rows=PAIR, segment_blocks={"A": 3}, tuning=DecodeTuning(schedule=Schedule.QUEUE)),
    "first_of_a_group_has_ended": Case(
        rows=(Row(path="A", own=0), *PAIR, Row(path="A", own=0), Row(path="B"), Row(own=0)),
        segment_blocks={"A": 3, "B": 1},
    ),
    "own_keys_in_several_items": Case(
        rows=(Row(path="A", own=150), Row(path="A", own=30)), segment_blocks={"A": 3}
    ),
    "eight_levels_of_small_blocks": Case(
        rows=(Row(path="ABCDEFGH", own=1), Row(path="ABCDEFGH", own=6), Row(path="ABC", own=40)),
        segment_blocks=dict(zip("ABCDEFGH", (1, 3, 1, 9, 1, 2, 1, 1), strict=True)),
        block_size=4,
        cut_tokens=40,
    ),
    "blocks_larger_than_tiles": Case(
        rows=PAIR, segment_blocks={"A": 2}, block_size=48, cut_tokens=96
    ),
    "one_head_each": Case(rows=PAIR, segment_blocks={"A": 3}, num_kv_heads=2),
    "group_of_three_dim_80": Case(
        rows=PAIR,
        segment_blocks={"A": 3},
        num_heads=6,
        num_kv_heads=2,
        head_dim=80,
        tile_queries=32,
    ),
    "group_larger_than_the_tile": Case(
        rows=PAIR, segment_blocks={"A": 2}, num_heads=20, num_kv_heads=1, item_rows=1
    ),
    "half": Case(rows=PAIR, segment_blocks={"A": 6}, cut_tokens=80, dtype=torch.float16),
}
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.cpu().double() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_sharing_equals_one_query_at_a_time_over_a_nan_filled_pool(
    name: str, device: torch.device
) -> None:
    step = Step(CASES[name], device)
    assert relative_error(step.run(), step.expected()) < TOLERANCES[step.case.dtype]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="bf16 products need a GPU")
@pytest.mark.parametrize(
    ("head_dim", "dtype", "tile_queries"),
    [
        (64, torch.bfloat16, 128),
        (80, torch.float16, 64),
        (128, torch.bfloat16, 16),
        (128, torch.bfloat16, 64),
        (128, torch.bfloat16, 128),
        (128, torch.float32, 16),
        (256, torch.bfloat16, 128),
    ],
)
def test_head_dims_dtypes_and_tiles_on_the_gpu(
    head_dim: int, dtype: torch.dtype, tile_queries: int, device: torch.device
) -> None:
    case = replace(THREE_LEVELS, head_dim=head_dim, dtype=dtype, tile_queries=tile_queries)
    step = Step(replace(case, item_rows=8, cut_tokens=1024), device)
    assert relative_error(step.run(), step.expected()) < TOLERANCES[dtype]


def test_one_plan_serves_all_steps_of_a_chunk(device: torch.device) -> None:
    rows = (Row(path="A", own=10), Row(path="A", own=1), Row(path="AB", own=3))
    case = Case(rows=rows, segment_blocks={"A": 3, "B": 2})
    expected = Step(case, device).run()
    # At the end of the chunk rows have up to three items; at this step, some of the same rows one.
    ahead = Step(replace(case, steps_ahead=120), device)
    assert ahead.plan.row_num_splits.tolist() == [3, 3, 3]
    assert torch.equal(ahead.run(), expected)


def test_a_row_that_ends_becomes_zeros_and_the_others_stay(device: torch.device) -> None:
    step = Step(Case(rows=PAIR, segment_blocks={"A": 3}), device)
    expected = step.run()
    step.rows.seq_lens[0] = 0
    actual = step.run()
    assert not actual[0].any()
    assert torch.equal(actual[1:], expected[1:])


def test_a_row_does_not_depend_on_who_shares_with_it(device: torch.device) -> None:
    case = Case(rows=PAIR, segment_blocks={"A": 3})
    alone = Step(replace(case, rows=PAIR[:1]), device)
    together = Step(case, device)
    together.query[0] = alone.query[0]
    together.pools = together.pools.nan_to_num(9.0)
    tables = [step.rows.block_ids[: step.rows.block_starts[1]].long() for step in (alone, together)]
    together.pools[:, tables[1]] = alone.pools[:, tables[0]]
    assert torch.equal(together.run()[0], alone.run()[0])


@pytest.mark.parametrize("has_splits", [True, False])
def test_a_plan_that_shares_nothing_gives_the_same_bits_as_without_sharing(
    has_splits: bool, device: torch.device
) -> None:
    rows = (Row(own=40), Row(path="A", own=30), Row(path="A", own=16), Row(own=0))
    split_tokens = 32 if has_splits else 128
    case = Case(rows=rows, segment_blocks={"A": 3}, shares=False, split_tokens=split_tokens)
    step = Step(case, device)
    assert step.plan.has_splits == has_splits
    actual = step.run(has_splits=has_splits)
    assert torch.equal(actual, step.run(has_splits=has_splits, has_shared=False))
    assert relative_error(actual, step.expected()) < 2e-6


def test_shared_partial_results_are_those_of_their_range(device: torch.device) -> None:
    case = Case(rows=PAIR, segment_blocks={"A": 3}, num_heads=4, num_kv_heads=2)
    step = Step(case, device)
    attend_to_shared(
        step.query,
        *step.pools,
        block_ids=step.rows.block_ids,
        block_starts=step.rows.block_starts,
        buffers=step.buffers,
        scale=SCALE,
        tuning=SharedTuning(tile_queries=16),
    )
    keys, values = step.key_values[1][:, 32:48, 1].double()  # the second item, the second KV head
    scores = keys @ step.query[1, 2].cpu().double() * SCALE
    place = MAX_SHARED_PARTIALS + 1, 2
    total = step.buffers.shared_totals[place].cpu().double()
    maximum = step.buffers.shared_maxima[place].cpu().double() * np.log(2)
    assert torch.isclose(maximum, scores.max(), rtol=1e-5)
    assert torch.isclose(maximum + total.log(), scores.logsumexp(0), rtol=1e-5)
    mean = step.buffers.shared_sums[place].cpu().double() / total
    assert relative_error(mean, scores.softmax(0) @ values) < 1e-5
    places = step.buffers.shared_totals.view(len(PAIR), MAX_SHARED_PARTIALS, -1)
    assert places[:, 2:].isnan().all()


def test_windows_cannot_hide_what_is_shared(device: torch.device) -> None:
    step = Step(Case(rows=PAIR, segment_blocks={"A": 3}), device)
    with pytest.raises(ValueError, match="sliding window cannot share"):
        decode_attention(
            step.query,
            *step.pools,
            rows=step.rows,
            buffers=step.buffers,
            scale=SCALE,
            window=8,
            has_shared=True,
        )


@pytest.mark.parametrize(("group", "expected"), [(2, 32), (3, 21), (20, 3)])
def test_items_fill_their_tile(group: int, expected: int) -> None:
    assert max_item_rows(group) == expected
    assert SHARED_TUNING.tile_queries >= expected * group
