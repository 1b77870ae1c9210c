from dataclasses import replace

import numpy as np
import pytest
import torch

from nanobatch.kernels.gpu.prefill_attention import (
    contiguous_prefill_attention,
    paged_prefill_attention,
)
from nanobatch.kernels.gpu.prefill_tiling import PrefillTiling
from nanobatch.kernels.prefill_plan import TileLimits, plan_tiles
from tests.kernels.gpu.prefill_case import SCALE, PrefillCase, PrefillInputs

SMALL_TILING = PrefillTiling(tile_rows=16, tile_keys=16, num_warps=4, num_stages=2)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

CASES = {
    "query and cached lengths around tile and block ends": PrefillCase(
        lens=((0, 1), (16, 1), (15, 17), (33, 2), (0, 16), (1, 15))
    ),
    "one query head per KV head": PrefillCase(lens=((3, 20), (0, 7)), num_heads=2),
    "a group that is no power of two": PrefillCase(
        lens=((3, 20), (0, 7)), num_heads=6, num_kv_heads=2
    ),
    "sixteen query heads per KV head": PrefillCase(lens=((18, 3),), num_heads=16, num_kv_heads=1),
    "padded head dimension": PrefillCase(lens=((17, 5),), head_dim=96, num_heads=2),
    "head dimension 128": PrefillCase(lens=((17, 5),), head_dim=128, num_heads=2),
    "head dimension 256": PrefillCase(lens=((17, 5),), head_dim=256, num_heads=2),
    "window inside one piece": PrefillCase(lens=((40, 19), (0, 23), (2, 1)), window=5),
    "window over several pieces": PrefillCase(lens=((60, 19), (0, 50)), window=37),
    "window of one key": PrefillCase(lens=((20, 3), (0, 2)), window=1),
    "window longer than the sequence": PrefillCase(lens=((20, 3),), window=1000),
    "float16": PrefillCase(lens=((20, 13), (0, 18)), dtype=torch.float16),
    "blocks of 4 tokens": PrefillCase(lens=((20, 13), (0, 6)), block_size=4),
    "blocks of 64 tokens": PrefillCase(lens=((70, 13), (0, 6)), block_size=64),
}


def attend_paged(inputs: PrefillInputs, *, tiling: PrefillTiling = SMALL_TILING) -> torch.Tensor:
    case, chunks = inputs.case, inputs.chunks
    out = torch.full_like(inputs.query, torch.nan, memory_format=torch.contiguous_format)
    paged_prefill_attention(
        inputs.query,
        inputs.key_cache,
        inputs.value_cache,
        tiles=tiles_of(inputs, tiling, chunks.table_starts),
        block_ids=torch.from_numpy(chunks.block_ids).to(out.device),
        scale=SCALE,
        window=case.window,
        tiling=tiling,
        out=out,
    )
    return out


def attend_contiguous(inputs: PrefillInputs) -> torch.Tensor:
    out = torch.full_like(inputs.query, torch.nan, memory_format=torch.contiguous_format)
    contiguous_prefill_attention(
        inputs.query,
        inputs.key,
        inputs.value,
        tiles=tiles_of(inputs, SMALL_TILING, inputs.chunks.query_start_loc[:-1]),
        scale=SCALE,
        window=inputs.case.window,
        tiling=SMALL_TILING,
        out=out,
    )
    return out


def tiles_of(
    inputs: PrefillInputs, tiling: PrefillTiling, source_starts: np.ndarray
) -> torch.Tensor:
    group_size = inputs.case.num_heads // inputs.case.num_kv_heads
    limits = TileLimits(
        queries_per_tile=tiling.queries_per_tile(group_size), keys_per_section=1 << 20
    )
    rows = np.arange(inputs.chunks.num_seqs)
    tiles = plan_tiles(inputs.chunks, rows, source_starts=source_starts, limits=limits)
    return torch.from_numpy(tiles).to(inputs.query.device)


def assert_close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(
        actual.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("name", CASES)
def test_paged_attention_equals_the_reference(name: str, device: torch.device) -> None:
    inputs = PrefillInputs(CASES[name], device)
    assert_close(attend_paged(inputs), inputs.expected(), inputs.case.dtype)


@pytest.mark.parametrize("window", [None, 7])
def test_contiguous_attention_equals_the_reference(
    window: int | None, device: torch.device
) -> None:
    case = PrefillCase(lens=((0, 1), (0, 33), (0, 16), (0, 5)), window=window)
    inputs = PrefillInputs(case, device)
    assert_close(attend_contiguous(inputs), inputs.expected(), case.dtype)


def test_pool_and_new_keys_give_the_same_bits(device: torch.device) -> None:
    inputs = PrefillInputs(PrefillCase(lens=((0, 33), (0, 6))), device)
    assert torch.equal(attend_paged(inputs), attend_contiguous(inputs))


def test_nan_in_another_sequence_of_the_step_changes_nothing(device: torch.device) -> None:
    inputs = PrefillInputs(PrefillCase(lens=((0, 5), (0, 6), (0, 18))), device)
    expected = attend_contiguous(inputs)
    inputs.key[5:11] = torch.nan
    inputs.value[5:11] = torch.nan
    actual = attend_contiguous(inputs)
    assert torch.equal(actual[:5], expected[:5])
    assert torch.equal(actual[11:], expected[11:])


@pytest.mark.parametrize("window", [None, 21])
def test_result_does_not_depend_on_where_a_chunk_begins(
    window: int | None, device: torch.device
) -> None:
    case = PrefillCase(lens=((0, 50),), window=window)
    whole = PrefillInputs(case, device)
    expected = attend_paged(whole)
    part = PrefillInputs(replace(case, lens=((37, 13),)), device)
    part.chunks = replace(whole.chunks, query_start_loc=np.array([0, 13], np.int32))
    part.query, part.key_cache, part.value_cache = (
        whole.query[37:],
        whole.key_cache,
        whole.value_cache,
    )
    assert torch.equal(attend_paged(part), expected[37:])


def test_no_tiles_launch_nothing(device: torch.device) -> None:
    inputs = PrefillInputs(PrefillCase(lens=((0, 2),)), device)
    out = torch.full_like(inputs.query, torch.nan, memory_format=torch.contiguous_format)
    contiguous_prefill_attention(
        inputs.query,
        inputs.key,
        inputs.value,
        tiles=torch.empty(0, 4, dtype=torch.int32, device=device),
        scale=SCALE,
        window=None,
        tiling=SMALL_TILING,
        out=out,
    )
    assert out.isnan().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_tiling_of_a_model_equals_the_reference(
    dtype: torch.dtype, head_dim: int, device: torch.device
) -> None:
    lens = ((0, 1), (16, 15), (2047, 16), (0, 1000), (1, 17), (300, 100))
    case = PrefillCase(lens=lens, num_heads=16, num_kv_heads=2, head_dim=head_dim, dtype=dtype)
    inputs = PrefillInputs(case, device)
    tiling = PrefillTiling.for_heads(head_dim=head_dim, group_size=8, dtype=dtype)
    assert_close(attend_paged(inputs, tiling=tiling), inputs.expected(), dtype)
