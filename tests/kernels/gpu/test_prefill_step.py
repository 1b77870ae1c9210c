import numpy as np
import pytest
import torch

from nanobatch.kernels.attention_backend import AttentionBackend, resolve_attention_backend
from nanobatch.kernels.gpu.prefill_step import PrefillPlanner, PrefillStep
from nanobatch.kernels.packed_upload import PackedUpload
from tests.kernels.gpu.prefill_case import SCALE, PrefillCase, PrefillInputs

MIXED_LENS = ((0, 9), (16, 2), (0, 20), (15, 1))
HAS_GPU = torch.cuda.is_available()


def planner_for(
    inputs: PrefillInputs, *, backend: AttentionBackend = AttentionBackend.TRITON
) -> PrefillPlanner:
    case = inputs.case
    return PrefillPlanner(
        backend,
        num_heads=case.num_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        dtype=case.dtype,
        block_size=case.block_size,
        upload=PackedUpload(inputs.query.device),
    )


def plan(
    inputs: PrefillInputs, *, backend: AttentionBackend = AttentionBackend.TRITON
) -> PrefillStep:
    window = inputs.case.window
    return planner_for(inputs, backend=backend).plan(inputs.chunks, windows=(window,))[window]


def attend(step: PrefillStep, inputs: PrefillInputs) -> torch.Tensor:
    return step.attend(
        inputs.query,
        inputs.key,
        inputs.value,
        key_cache=inputs.key_cache,
        value_cache=inputs.value_cache,
        scale=SCALE,
    )


@pytest.mark.parametrize(
    "lens", [((0, 9), (0, 3)), ((16, 2), (5, 9)), MIXED_LENS], ids=["fresh", "cached", "mixed"]
)
def test_step_equals_the_reference(lens: tuple[tuple[int, int], ...], device: torch.device) -> None:
    inputs = PrefillInputs(PrefillCase(lens=lens), device)
    actual = attend(plan(inputs), inputs)
    assert actual.is_contiguous()
    torch.testing.assert_close(actual.double(), inputs.expected(), atol=2e-5, rtol=2e-5)


def test_one_plan_serves_every_window(device: torch.device) -> None:
    full = PrefillInputs(PrefillCase(lens=MIXED_LENS), device)
    windowed = PrefillInputs(PrefillCase(lens=MIXED_LENS, window=6), device)
    steps = planner_for(full).plan(full.chunks, windows=(None, 6, None))
    assert set(steps) == {None, 6}
    assert steps[None].launches is steps[6].launches
    for inputs in (full, windowed):
        actual = attend(steps[inputs.case.window], inputs)
        torch.testing.assert_close(actual.double(), inputs.expected(), atol=2e-5, rtol=2e-5)


def test_fresh_sequences_do_not_read_the_pool(device: torch.device) -> None:
    inputs = PrefillInputs(PrefillCase(lens=((0, 9), (0, 3))), device)
    expected = attend(plan(inputs), inputs)
    inputs.key_cache.fill_(torch.nan)
    inputs.value_cache.fill_(torch.nan)
    assert torch.equal(attend(plan(inputs), inputs), expected)


def test_last_queries_equal_those_of_the_whole_step(device: torch.device) -> None:
    inputs = PrefillInputs(PrefillCase(lens=((0, 9), (16, 2), (0, 1))), device)
    expected = attend(plan(inputs), inputs)[[8, 11]]
    inputs.chunks = inputs.chunks.last_queries(np.array([0, 2]))
    inputs.query = inputs.query[[8, 11]]
    assert torch.equal(attend(plan(inputs), inputs), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no GPU")
@pytest.mark.parametrize("backend", [AttentionBackend.FA3, AttentionBackend.FA2])
@pytest.mark.parametrize("window", [None, 100])
def test_flash_attention_equals_the_reference(
    backend: AttentionBackend, window: int | None, device: torch.device
) -> None:
    case = PrefillCase(
        lens=((0, 300), (2047, 17), (0, 129), (16, 1), (0, 1), (300, 100)),
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        window=window,
        dtype=torch.bfloat16,
    )
    usable = resolve_attention_backend("auto", device, dtype=case.dtype, head_dim=128)
    if usable is not backend:
        pytest.skip(f"{backend} is not what this machine would take")
    inputs = PrefillInputs(case, device)
    actual = attend(plan(inputs, backend=backend), inputs)
    torch.testing.assert_close(actual.double(), inputs.expected(), atol=3e-2, rtol=3e-2)
