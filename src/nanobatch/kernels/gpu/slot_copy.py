"""Copies between slots of one layer's KV pool, in one kernel.

Slots are read before the kernel in front has ended (`dependent_launch`): they are uploaded once a
step, before the model runs.
"""

import torch
import triton
import triton.language as tl

from nanobatch.kernels.gpu.dependent_launch import early_start, wait_for_inputs

NUM_WARPS = 4


def copy_slots(
    key_cache: torch.Tensor, value_cache: torch.Tensor, *, slot_copies: torch.Tensor
) -> None:
    """Copy keys and values from some slots of one layer's pool to others, in place.

    Args:
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous.
        value_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous.
        slot_copies: [2, num_copies] int64, contiguous: sources, and destinations, of which none
            is a source or there twice. Not the result of the kernel launched just before.
    """
    for tensor in (key_cache, value_cache, slot_copies):
        assert tensor.is_contiguous(), "slots follow one another"
    num_copies = slot_copies.shape[1]
    slot_size = key_cache.shape[2] * key_cache.shape[3]
    if num_copies:
        _copy_slots_kernel[(num_copies,)](
            slot_copies,
            key_cache,
            value_cache,
            num_copies,
            SLOT_SIZE=slot_size,
            WIDTH=triton.next_power_of_2(slot_size),
            num_warps=NUM_WARPS,
            **early_start(key_cache.device),
        )


@triton.jit(do_not_specialize=["num_copies"])
def _copy_slots_kernel(
    slot_copies,
    key_cache,
    value_cache,
    num_copies,
    SLOT_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    copy = tl.program_id(0)
    elements = tl.arange(0, WIDTH)
    is_element = elements < SLOT_SIZE
    source = tl.load(slot_copies + copy) * SLOT_SIZE + elements
    destination = tl.load(slot_copies + num_copies + copy) * SLOT_SIZE + elements
    wait_for_inputs(STARTS_EARLY)
    keys = tl.load(key_cache + source, mask=is_element)
    values = tl.load(value_cache + source, mask=is_element)
    tl.store(key_cache + destination, keys, mask=is_element)
    tl.store(value_cache + destination, values, mask=is_element)
