from dataclasses import replace

import numpy as np
import pytest
import torch

from nanobatch.kernels.attention_backend import AttentionBackend, resolve_attention_backend
from nanobatch.kernels.gpu.prefill_attention import (
    continued_prefill_attention,
    shared_prefill_attention,
)
from nanobatch.kernels.gpu.prefill_group_launches import SharedThenOwn
from nanobatch.kernels.gpu.prefill_launches import LayerTensors
from nanobatch.kernels.gpu.prefill_step import PrefillPlanner, PrefillStep
from nanobatch.kernels.gpu.prefill_tiling import PrefillTiling
from nanobatch.kernels.packed_upload import PackedUpload
from nanobatch.kernels.prefill_groups import GroupCosts
from nanobatch.kernels.prefill_plan import (
    SharedGroups,
    TileLimits,
    plan_shared_tiles,
    plan_tiles,
)
from tests.kernels.gpu.prefill_case import SCALE, PrefillCase, PrefillInputs

HAS_GPU = torch.cuda.is_available()
SMALL_TILING = PrefillTiling(tile_rows=16, tile_keys=16, num_warps=4, num_stages=2)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ALWAYS_SHARE = GroupCosts(
    rows_per_query=2,
    tile_rows=1 << 20,
    key_s=1.0,
    rest_tile_rows=1,
    rest_key_s=0.0,
    row_s=0.0,
    step_s=0.0,
)
"""Any chunk alone costs a whole tile."""

CASES = {
    "short tails": PrefillCase(lens=((32, 1), (33, 5), (47, 2)), shared_blocks=(0, 2, 2)),
    "tails of several tiles": PrefillCase(lens=((16, 20), (20, 9)), shared_blocks=(0, 1)),
    "one query head per KV head": PrefillCase(
        lens=((16, 3), (16, 20)), shared_blocks=(0, 1), num_heads=2
    ),
    "a group that is no power of two": PrefillCase(
        lens=((16, 3), (17, 2)), shared_blocks=(0, 1), num_heads=6
    ),
    "padded head dimension": PrefillCase(
        lens=((16, 2), (18, 2)), shared_blocks=(0, 1), head_dim=96
    ),
    "float16": PrefillCase(lens=((32, 3), (32, 4)), shared_blocks=(0, 2), dtype=torch.float16),
    "blocks of 64 tokens": PrefillCase(
        lens=((64, 3), (70, 4)), shared_blocks=(0, 1), block_size=64
    ),
}


def attend_as_one_group(inputs: PrefillInputs) -> torch.Tensor:
    """Run both passes over the blocks that all sequences share."""
    case, chunks = inputs.case, inputs.chunks
    num_keys = min(case.shared_blocks[1:]) * case.block_size
    groups = SharedGroups(
        first_rows=np.array([0]),
        end_rows=np.array([chunks.num_seqs]),
        num_shared_keys=np.array([num_keys]),
    )
    group_size = case.num_heads // case.num_kv_heads
    limits = TileLimits(
        queries_per_tile=SMALL_TILING.queries_per_tile(group_size), keys_per_section=1 << 20
    )
    own_tiles = plan_tiles(
        chunks,
        np.arange(chunks.num_seqs),
        source_starts=chunks.table_starts,
        limits=limits,
        first_keys=groups.shared_keys_of_rows(chunks.num_seqs),
    )
    device = inputs.query.device
    out = torch.full_like(inputs.query, torch.nan, memory_format=torch.contiguous_format)
    log_sums = torch.full((out.shape[1], out.shape[0]), torch.nan, device=device)
    for attend, tiles in (
        (shared_prefill_attention, plan_shared_tiles(chunks, groups, limits=limits)),
        (continued_prefill_attention, own_tiles),
    ):
        attend(
            inputs.query,
            inputs.key_cache,
            inputs.value_cache,
            tiles=torch.from_numpy(tiles).to(device),
            block_ids=torch.from_numpy(chunks.block_ids).to(device),
            scale=SCALE,
            tiling=SMALL_TILING,
            out=out,
            log_sums=log_sums,
        )
    return out


@pytest.mark.parametrize("name", CASES)
def test_both_passes_equal_the_reference(name: str, device: torch.device) -> None:
    inputs = PrefillInputs(CASES[name], device)
    tolerance = TOLERANCE[inputs.case.dtype]
    actual = attend_as_one_group(inputs)
    torch.testing.assert_close(actual.double(), inputs.expected(), atol=tolerance, rtol=tolerance)


def test_nan_in_one_sequence_of_a_group_stays_there(device: torch.device) -> None:
    inputs = PrefillInputs(PrefillCase(lens=((16, 3), (20, 4)), shared_blocks=(0, 1)), device)
    expected = attend_as_one_group(inputs)
    own_blocks = inputs.chunks.block_ids[1:2].astype(np.int64)
    inputs.key_cache[own_blocks] = torch.nan
    inputs.value_cache[own_blocks] = torch.nan
    actual = attend_as_one_group(inputs)
    assert actual[:3].isnan().all()
    assert torch.equal(actual[3:], expected[3:])


def test_the_sequences_of_a_group_do_not_change_each_other(device: torch.device) -> None:
    case = PrefillCase(lens=((16, 3), (20, 4), (16, 2)), shared_blocks=(0, 1, 1))
    inputs = PrefillInputs(case, device)
    expected = attend_as_one_group(inputs)
    inputs.query[3:7] *= 2
    actual = attend_as_one_group(inputs)
    assert torch.equal(actual[:3], expected[:3])
    assert torch.equal(actual[7:], expected[7:])
    assert not torch.equal(actual[3:7], expected[3:7])


# A step: a leader that computes the beginning, two that share it, a stranger, two that share more.
STEP = PrefillCase(
    lens=((0, 40), (32, 2), (35, 3), (16, 2), (64, 1), (64, 2)),
    shared_blocks=(0, 2, 2, 0, 0, 4),
)


def plan(
    inputs: PrefillInputs,
    *,
    backend: AttentionBackend = AttentionBackend.TRITON,
    costs: GroupCosts | None = ALWAYS_SHARE,
    enable_shared_attention: bool = True,
    windows: tuple[int | None, ...] = (None,),
) -> dict[int | None, PrefillStep]:
    case = inputs.case
    planner = PrefillPlanner(
        backend,
        num_heads=case.num_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        dtype=case.dtype,
        block_size=case.block_size,
        upload=PackedUpload(inputs.query.device),
        enable_shared_attention=enable_shared_attention,
        costs=costs,
    )
    return planner.plan(inputs.chunks, windows=windows)


def attend(step: PrefillStep, inputs: PrefillInputs) -> torch.Tensor:
    layer = LayerTensors(
        query=inputs.query,
        key=inputs.key,
        value=inputs.value,
        key_cache=inputs.key_cache,
        value_cache=inputs.value_cache,
        scale=SCALE,
    )
    out = torch.full_like(inputs.query, torch.nan, memory_format=torch.contiguous_format)
    for launch in step.launches:
        launch.run(layer, window=step.window, out=out)
    return out


def num_group_launches(step: PrefillStep) -> int:
    return sum(isinstance(launch, SharedThenOwn) for launch in step.launches)


def test_a_step_of_groups_and_others_equals_the_reference(device: torch.device) -> None:
    inputs = PrefillInputs(STEP, device)
    step = plan(inputs)[None]
    assert num_group_launches(step) == 1
    assert len(step.launches) == 3
    torch.testing.assert_close(
        attend(step, inputs).double(), inputs.expected(), atol=2e-5, rtol=2e-5
    )


def test_last_queries_of_a_group_equal_the_reference(device: torch.device) -> None:
    inputs = PrefillInputs(STEP, device)
    rows = np.array([1, 2, 4, 5])
    last = inputs.chunks.query_start_loc[rows + 1] - 1
    expected = inputs.expected()[last]
    inputs.chunks = inputs.chunks.last_queries(rows)
    inputs.query = inputs.query[last]
    step = plan(inputs)[None]
    assert len(step.launches) == num_group_launches(step) == 1
    torch.testing.assert_close(attend(step, inputs).double(), expected, atol=2e-5, rtol=2e-5)


def test_layers_with_a_window_have_no_groups(device: torch.device) -> None:
    inputs = PrefillInputs(replace(STEP, window=9), device)
    steps = plan(inputs, windows=(None, 9, 20))
    assert [num_group_launches(steps[window]) for window in (None, 9, 20)] == [1, 0, 0]
    torch.testing.assert_close(
        attend(steps[9], inputs).double(), inputs.expected(), atol=2e-5, rtol=2e-5
    )


def test_groups_can_be_switched_off(device: torch.device) -> None:
    inputs = PrefillInputs(STEP, device)
    assert num_group_launches(plan(inputs, enable_shared_attention=False)[None]) == 0


def test_few_short_chunks_are_not_worth_a_group(device: torch.device) -> None:
    assert num_group_launches(plan(PrefillInputs(STEP, device), costs=None)[None]) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
@pytest.mark.parametrize(
    "backend", [AttentionBackend.FA3, AttentionBackend.FA2, AttentionBackend.TRITON]
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_groups_of_every_backend_equal_the_reference(
    backend: AttentionBackend, head_dim: int, device: torch.device
) -> None:
    case = PrefillCase(
        lens=((0, 1024), (512, 17), (515, 100), (1024, 1), (77, 129), (640, 3), (704, 30)),
        shared_blocks=(0, 32, 32, 32, 0, 0, 40),
        num_heads=16,
        num_kv_heads=8,
        head_dim=head_dim,
        dtype=torch.bfloat16,
    )
    usable = resolve_attention_backend("auto", device, dtype=case.dtype, head_dim=head_dim)
    if backend not in (usable, AttentionBackend.TRITON):
        pytest.skip(f"{backend} is not what this machine would take")
    inputs = PrefillInputs(case, device)
    step = plan(inputs, backend=backend)[None]
    assert num_group_launches(step) == 1
    torch.testing.assert_close(
        attend(step, inputs).double(), inputs.expected(), atol=3e-2, rtol=3e-2
    )
