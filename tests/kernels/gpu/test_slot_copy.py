"""Copies between slots of a pool, in one kernel and in torch, against plain indexing."""

import pytest
import torch

from nanobatch.kernels import kv_cache
from nanobatch.kernels.slot_copies import CopySlots


def triton_copy_slots(*caches: torch.Tensor, slot_copies: torch.Tensor) -> None:
    from nanobatch.kernels.gpu.slot_copy import copy_slots

    copy_slots(*caches, slot_copies=slot_copies)


@pytest.mark.parametrize("copy_slots", [kv_cache.copy_slots, triton_copy_slots])
@pytest.mark.parametrize(
    ("num_kv_heads", "head_dim", "dtype"),
    [(1, 16, torch.float32), (3, 80, torch.float16), (8, 128, torch.bfloat16)],
)
@pytest.mark.parametrize("num_copies", [0, 1, 9])
def test_slots_are_copied_and_all_others_stay(
    copy_slots: CopySlots,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    num_copies: int,
    device: torch.device,
) -> None:
    generator = torch.Generator().manual_seed(num_copies)
    shape = (6, 4, num_kv_heads, head_dim)
    caches = [torch.randn(shape, generator=generator).to(dtype).to(device) for _ in range(2)]
    expected = [cache.clone().flatten(0, 1) for cache in caches]
    slots = torch.randperm(24, generator=generator).to(device)
    # One source is copied twice.
    sources, destinations = slots[:num_copies].clone(), slots[num_copies : 2 * num_copies]
    sources[-1:] = sources[:1]
    for cache in expected:
        cache[destinations] = cache[sources]
    copy_slots(*caches, slot_copies=torch.stack((sources, destinations)))
    for cache, target in zip(caches, expected, strict=True):
        assert torch.equal(cache.flatten(0, 1), target)
