import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from nanobatch.kernels.decode_plan import DecodePlan, plan_decode
from nanobatch.kernels.decode_plan_layout import DecodePlanLayout
from nanobatch.kernels.gpu.decode_attention import (
    DecodeRows,
    PagedDecodeAttention,
    decode_attention,
)
from nanobatch.kernels.gpu.decode_buffers import DecodeBuffers
from nanobatch.kernels.gpu.decode_tuning import DecodeTuning, Schedule

SCALE = 0.3


@dataclass(frozen=True, kw_only=True)
class Case:
    """Lengths at one step (0: inactive) and the sizes around them."""

    lens: tuple[int, ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    split_tokens: int = 32
    tile_tokens: int = 16
    window: int | None = None
    planned_window: int | None = None
    steps_ahead: int = 0  # how much longer every active row is at the end of the planned chunk
    tuning: DecodeTuning = field(default_factory=DecodeTuning)
    dtype: torch.dtype = torch.float32


class Step:
    """Random queries, keys and values of a case; the keys lie scattered in a NaN-filled pool."""

    def __init__(self, case: Case, device: torch.device, *, seed: int = 0) -> None:
        self.case = case
        self.device = device
        kv_shape = (case.num_kv_heads, case.head_dim)
        # A generator a row: more rows leave the others as they are.
        rngs = [torch.Generator().manual_seed(seed + row) for row in range(len(case.lens))]
        rows = list(zip(case.lens, rngs, strict=True))
        self.keys = [torch.randn(n, *kv_shape, generator=rng).to(case.dtype) for n, rng in rows]
        self.values = [torch.randn(n, *kv_shape, generator=rng).to(case.dtype) for n, rng in rows]
        # As in the engine: queries are a part of the product of one projection.
        qkv_shape = (case.num_heads + 2, case.head_dim)
        qkv = torch.stack([torch.randn(qkv_shape, generator=rng) for rng in rngs])
        self.query = qkv.to(case.dtype).to(device)[:, : case.num_heads]
        final_lens = np.array([n + case.steps_ahead if n else 0 for n in case.lens], np.int32)
        self._fill_pool(final_lens, seed)
        self.plan, self.buffers = self._plan(final_lens)

    def run(self, *, has_splits: bool = True) -> torch.Tensor:
        case = self.case
        token_bytes = 2 ** math.ceil(math.log2(case.head_dim)) * case.dtype.itemsize
        attention = PagedDecodeAttention(
            rows=self.rows,
            buffers=self.buffers,
            window=case.window,
            has_splits=has_splits,
            tuning=replace(case.tuning, tile_bytes=case.tile_tokens * token_bytes),
        )
        return attention.attend(
            self.query,
            self.query,
            self.query,
            key_cache=self.key_cache,
            value_cache=self.value_cache,
            scale=SCALE,
        )

    def expected(self) -> torch.Tensor:
        """Compute each query of each head by itself, in float64."""
        group = self.case.num_heads // self.case.num_kv_heads
        out = torch.zeros(self.query.shape, dtype=torch.float64)
        query = self.query.cpu().double()
        for row, length in enumerate(self.case.lens):
            low = 0 if self.case.window is None else max(0, length - self.case.window)
            for head in range(self.case.num_heads if length else 0):
                keys = self.keys[row][low:, head // group].double()
                values = self.values[row][low:, head // group].double()
                out[row, head] = torch.softmax(keys @ query[row, head] * SCALE, 0) @ values
        return out

    def _fill_pool(self, final_lens: np.ndarray, seed: int) -> None:
        case = self.case
        block_counts = -(-final_lens // case.block_size)
        starts = np.concatenate([[0], np.cumsum(block_counts)]).astype(np.int32)
        block_ids = np.random.default_rng(seed).permutation(starts[-1] + 2)[: starts[-1]]
        pool_shape = (starts[-1] + 2, case.block_size, case.num_kv_heads, case.head_dim)
        pools = [torch.full(pool_shape, torch.nan, dtype=case.dtype) for _ in range(2)]
        for row, length in enumerate(case.lens):
            positions = np.arange(length)
            blocks = torch.from_numpy(block_ids[starts[row] + positions // case.block_size])
            offsets = torch.from_numpy(positions % case.block_size)
            pools[0][blocks, offsets] = self.keys[row]
            pools[1][blocks, offsets] = self.values[row]
        self.key_cache, self.value_cache = (pool.to(self.device) for pool in pools)
        self.rows = DecodeRows(
            seq_lens=torch.tensor(case.lens, dtype=torch.int32, device=self.device),
            block_ids=torch.from_numpy(block_ids.astype(np.int32)).to(self.device),
            block_starts=torch.from_numpy(starts).to(self.device),
        )

    def _plan(self, final_lens: np.ndarray) -> tuple[DecodePlan, DecodeBuffers]:
        case = self.case
        plan = plan_decode(
            final_lens,
            split_tokens=case.split_tokens,
            window=case.planned_window,
            num_steps=case.steps_ahead + 1,
        )
        layout = DecodePlanLayout.for_bucket(
            len(final_lens),
            split_tokens=case.split_tokens,
            max_model_len=max(int(final_lens.max()), 1),
            max_total_tokens=int(final_lens.sum()),
        )
        words = np.zeros(layout.num_words, np.int32)
        layout.pack(plan, words)
        buffers = DecodeBuffers.allocate(
            layout,
            torch.from_numpy(words).to(self.device),
            num_heads=case.num_heads,
            head_dim=case.head_dim,
        )
        for partials in (buffers.partial_sums, buffers.partial_maxima, buffers.partial_totals):
            partials.fill_(torch.nan)
        return plan, buffers


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what the launcher allocates with NaN: an element left out shows."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        return empty(*args, **kwargs).fill_(torch.nan)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", poisoned)


RAGGED = (17, 0, 1, 15, 70, 16, 33, 32)
CASES = {
    "ragged": Case(lens=RAGGED),
    "queue": Case(lens=(17, 0, 70, 32), tuning=DecodeTuning(schedule=Schedule.QUEUE)),
    "no_splits": Case(lens=(17, 0, 1, 32), split_tokens=32),
    "many_parts": Case(lens=(150, 5), num_heads=4, num_kv_heads=1, split_tokens=16),
    "one_head_each": Case(lens=(40, 17, 3), num_heads=2, num_kv_heads=2),
    "group_of_three": Case(lens=(40, 70, 3), num_heads=6, num_kv_heads=2),
    "group_of_16": Case(lens=(40, 3), num_heads=16, num_kv_heads=1),
    "group_of_20": Case(lens=(40, 3), num_heads=20, num_kv_heads=1),
    "head_dim_80": Case(lens=(40, 17), head_dim=80),
    "head_dim_96": Case(lens=(40, 17), head_dim=96),
    "head_dim_256": Case(lens=(40,), head_dim=256, num_heads=2, num_kv_heads=1),
    "small_blocks": Case(lens=(40, 17, 70), block_size=4),
    "blocks_larger_than_tiles": Case(lens=(40, 17, 130), block_size=64),
    "window": Case(lens=RAGGED, window=20),
    "window_over_two_parts": Case(lens=(17, 0, 70, 33), window=40),
    "window_of_one": Case(lens=(40, 33, 1, 0), window=1),
    "window_known_to_the_plan": Case(
        lens=(17, 1, 0, 33), window=20, planned_window=20, steps_ahead=3
    ),
    "half": Case(lens=(17, 0, 70), dtype=torch.float16),
}
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.cpu().double() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_one_query_at_a_time_over_a_nan_filled_pool(
    name: str, device: torch.device
) -> None:
    step = Step(CASES[name], device)
    assert relative_error(step.run(), step.expected()) < TOLERANCES[step.case.dtype]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="bf16 products need a GPU")
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_every_head_dim_and_dtype_on_the_gpu(
    head_dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    lens = (*RAGGED, 1000, 513)
    case = Case(lens=lens, head_dim=head_dim, dtype=dtype, split_tokens=256, tile_tokens=32)
    step = Step(case, device)
    assert relative_error(step.run(), step.expected()) < TOLERANCES[dtype]


@pytest.mark.parametrize(("schedule", "window"), [(Schedule.STRIDED, 40), (Schedule.QUEUE, None)])
def test_a_row_does_not_depend_on_its_neighbours_or_on_how_far_ahead_was_planned(
    schedule: Schedule, window: int | None, device: torch.device
) -> None:
    tuning = DecodeTuning(schedule=schedule)
    case = Case(lens=(31, 70), window=window, tuning=tuning)
    expected = Step(case, device).run()
    for steps_ahead in (3, 40):
        ahead = Step(replace(case, steps_ahead=steps_ahead, planned_window=window), device)
        assert torch.equal(ahead.run(), expected)
    more = Step(replace(case, lens=(31, 70, 130, 1)), device)
    assert torch.equal(more.run()[:2], expected)


@pytest.mark.parametrize("lens", [(0,), (3,), (40, 100, 0)])
def test_the_queue_is_ready_for_the_next_launch(
    lens: tuple[int, ...], device: torch.device
) -> None:
    step = Step(Case(lens=lens, tuning=DecodeTuning(schedule=Schedule.QUEUE)), device)
    first = step.run()
    assert not step.buffers.queue.any()
    assert torch.equal(step.run(), first)


def test_a_plan_without_splits_needs_no_merge(device: torch.device) -> None:
    step = Step(Case(lens=(17, 0, 1, 32, 20)), device)
    assert not step.plan.has_splits
    roomy = replace(step.buffers.layout, max_partials=9)  # as of a bucket for longer rows
    step.buffers = replace(step.buffers, layout=roomy)
    assert torch.equal(step.run(has_splits=False), step.run(has_splits=True))
    assert relative_error(step.run(has_splits=False), step.expected()) < 2e-6
    assert Step(Case(lens=(17, 33)), device).plan.has_splits


def test_a_row_that_ends_within_a_chunk_becomes_zeros(device: torch.device) -> None:
    step = Step(Case(lens=(40, 100)), device)
    step.rows.seq_lens[1] = 0
    actual = step.run()
    assert not actual[1].any()
    assert relative_error(actual[:1], step.expected()[:1]) < 2e-6


def test_a_broken_neighbour_does_not_touch_other_rows(device: torch.device) -> None:
    step = Step(Case(lens=(40, 35, 20)), device)
    expected = step.run()
    starts = step.rows.block_starts.tolist()
    step.value_cache[step.rows.block_ids[starts[1] : starts[2]].long()] = torch.nan
    actual = step.run()
    assert actual[1].isnan().all()
    assert torch.equal(actual[[0, 2]], expected[[0, 2]])


def test_pools_and_items_that_would_be_read_wrongly_are_refused(device: torch.device) -> None:
    step = Step(Case(lens=(40,)), device)
    with pytest.raises(ValueError, match="same strides"):
        decode_attention(
            step.query,
            step.key_cache,
            torch.cat([step.value_cache, step.value_cache], dim=2)[:, :, :2],
            rows=step.rows,
            buffers=step.buffers,
            scale=SCALE,
        )
    with pytest.raises(ValueError, match="must be contiguous"):
        decode_attention(
            step.query.transpose(1, 2).contiguous().transpose(1, 2),
            step.key_cache,
            step.value_cache,
            rows=step.rows,
            buffers=step.buffers,
            scale=SCALE,
        )
    with pytest.raises(ValueError, match="at least 16, got 8"):
        Step(Case(lens=(40,), split_tokens=8), device).run()
