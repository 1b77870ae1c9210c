"""The bfloat16 path of decoding rows against float64, on processors that have it."""

import pytest
import torch

from nanobatch.kernels.attention_plan import DenseGroup
from nanobatch.kernels.cpu_matrix import has_bfloat16_units
from nanobatch.kernels.decode_products import MAX_KV_HEADS, is_multiplied, multiply_rows

pytestmark = pytest.mark.skipif(not has_bfloat16_units(), reason="no AMX or AVX-512 BF16")

SCALE = 0.2


def random(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).bfloat16()


def group_of(num_pieces: int, num_keys: int, bias: torch.Tensor | None) -> DenseGroup:
    return DenseGroup(
        tokens=torch.arange(num_pieces),
        slots=slice(0, num_pieces * num_keys),
        bias=bias,
        num_pieces=num_pieces,
        num_queries=1,
        num_keys=num_keys,
    )


def expected(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, group: DenseGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend in float64, and return log-sum-exps of the scores."""
    num_kv_heads = keys.shape[1]
    shape = (group.num_pieces, group.num_keys, num_kv_heads, -1)
    heads = queries.double().view(group.num_pieces, num_kv_heads, -1, queries.shape[2])
    scores = torch.einsum("nhgd,nkhd->nhgk", heads, keys.double().view(shape)) * SCALE
    if group.bias is not None:
        scores += group.bias[:, None]
    attended = torch.einsum("nhgk,nkhd->nhgd", scores.softmax(-1), values.double().view(shape))
    return attended.reshape(queries.shape), scores.logsumexp(-1).flatten(1)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(9, 3), (4, 4), (6, 1), (8, 2)])
@pytest.mark.parametrize("num_keys", [1, 37, 160])
def test_products_attend_like_float64(num_heads: int, num_kv_heads: int, num_keys: int) -> None:
    bias = torch.zeros(5, 1, num_keys)
    bias[2, :, num_keys // 2 + 1 :] = -torch.inf
    queries = random(5, num_heads, 32)
    keys, values = (random(5 * num_keys, num_kv_heads, 32) for _ in range(2))
    for each in (None, bias):
        group = group_of(5, num_keys, each)
        actual = multiply_rows(queries, keys, values, group=group, scale=SCALE)
        for ours, exact in zip(actual, expected(queries, keys, values, group=group), strict=True):
            assert ours.shape == exact.shape
            assert float((ours - exact).abs().max()) < 2e-2 * max(1.0, float(exact.abs().max()))


def test_a_broken_row_leaves_others_alone() -> None:
    queries, keys, values = random(3, 4, 16), random(3 * 20, 2, 16), random(3 * 20, 2, 16)
    group = group_of(3, 20, None)
    whole, _ = multiply_rows(queries, keys, values, group=group, scale=SCALE)
    keys[20:40], values[25] = torch.nan, torch.inf
    broken, _ = multiply_rows(queries, keys, values, group=group, scale=SCALE)
    assert not bool(broken[1].isfinite().any())
    assert torch.equal(broken[[0, 2]], whole[[0, 2]])


def test_other_data_types_and_many_heads_are_left_to_sdpa() -> None:
    queries, keys = random(1, 8, 4), random(1, 1, 4)
    assert is_multiplied(queries, keys)
    assert not is_multiplied(queries.float(), keys.float())
    assert not is_multiplied(queries, keys.expand(1, MAX_KV_HEADS + 1, 4))
