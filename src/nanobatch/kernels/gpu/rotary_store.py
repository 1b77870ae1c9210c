"""Head norms, rotary embedding and the store into the KV pool, in one kernel.

A program takes some heads of one token, whatever their kind: query and key heads are normalised
and rotated in place, key and value heads copied into the pool. So a step's projections are read
once and written once more than attention needs, and small batches still fill the chip.
Arithmetic is fp32; the rounding steps are those of `torch_kernels`.

Rotation and slots are read before the kernel in front has ended (`dependent_launch`): they are
written once a step, and a projection comes between.
"""

import torch
import triton
import triton.language as tl

from nanobatch.kernels.gpu.dependent_launch import early_start, wait_for_inputs
from nanobatch.kernels.kernel_set import HeadNorms

MOST_DECODE_TOKENS = 2048
"""Steps of up to so many tokens are limited by latency, larger ones by memory."""

DECODE_SHAPE = (16, 8)
"""Heads and warps per program. On an H200, 32 heads in all: 2.43 µs for 256 tokens, 2.57 with
(16, 4), 2.76 with (8, 2)."""

PREFILL_SHAPE = (8, 2)
"""16,384 tokens of 32 heads in all at 3.85 TB/s, 3.28 with (16, 4), 3.04 with (16, 8)."""


def rotate_and_store(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor],
    *,
    norms: HeadNorms | None,
    num_heads: int,
    slot_mapping: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalise and rotate a step's query and key heads, store keys and values in the pool.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], contiguous, overwritten.
        rotation: cos and sin, each [num_tokens, head_dim / 2] fp32, rows of equal strides. Not
            the result of the kernel launched just before, like slot_mapping.
        norms: Norms of the heads, or None.
        num_heads: Query heads.
        slot_mapping: [num_tokens] int64; a token with slot -1 is not stored.
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous, written.
        value_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous, written.

    Returns:
        Query [num_tokens, num_heads, head_dim], key and value
        [num_tokens, num_kv_heads, head_dim]: views of `qkv`.
    """
    for tensor in (qkv, key_cache, value_cache):
        assert tensor.is_contiguous(), "heads and slots follow one another"
    cos, sin = rotation
    assert cos.stride() == sin.stride(), "both are rows of one table, or both are not"
    num_tokens, (num_kv_heads, head_dim) = len(qkv), key_cache.shape[2:]
    num_all_heads = num_heads + 2 * num_kv_heads
    if num_tokens:
        is_decode = num_tokens <= MOST_DECODE_TOKENS
        heads_per_program, num_warps = DECODE_SHAPE if is_decode else PREFILL_SHAPE
        num_pieces = triton.cdiv(num_all_heads, heads_per_program)
        _rotate_and_store_kernel[(num_tokens * num_pieces,)](
            qkv,
            cos,
            sin,
            None if norms is None else norms.query_weight,
            None if norms is None else norms.key_weight,
            slot_mapping,
            key_cache,
            value_cache,
            0.0 if norms is None else norms.eps,
            cos.stride(0),
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            HALF_WIDTH=triton.next_power_of_2(head_dim // 2),
            HEADS=heads_per_program,
            NUM_PIECES=num_pieces,
            HAS_NORMS=norms is not None,
            num_warps=num_warps,
            **early_start(qkv.device),
        )
    heads = qkv.view(num_tokens, num_all_heads, head_dim)
    query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    return query, key, value


@triton.jit
def _head_factors(query_weight, key_weight, is_query, dimensions, is_dimension):
    """Return the norm's weights of each head, [HEADS, HALF_WIDTH] fp32."""
    of_query = tl.load(query_weight + dimensions, mask=is_dimension, other=0.0)
    of_key = tl.load(key_weight + dimensions, mask=is_dimension, other=0.0)
    return tl.where(is_query[:, None], of_query[None, :], of_key[None, :]).to(tl.float32)


@triton.jit
def _rotate_and_store_kernel(
    qkv,
    cos_rows,
    sin_rows,
    query_weight,
    key_weight,
    slot_mapping,
    key_cache,
    value_cache,
    eps,
    rotation_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    NUM_PIECES: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    HALF: tl.constexpr = HEAD_DIM // 2
    NUM_ROTATED: tl.constexpr = NUM_HEADS + NUM_KV_HEADS
    NUM_ALL: tl.constexpr = NUM_ROTATED + NUM_KV_HEADS
    dtype: tl.constexpr = qkv.dtype.element_ty
    program = tl.program_id(0)
    token = (program // NUM_PIECES).to(tl.int64)
    head = program % NUM_PIECES * HEADS + tl.arange(0, HEADS)
    dimensions = tl.arange(0, HALF_WIDTH)
    is_dimension = dimensions < HALF
    is_value = head >= NUM_ROTATED
    is_element = (head < NUM_ALL)[:, None] & is_dimension[None, :]

    slot = tl.load(slot_mapping + token)
    cos = tl.load(cos_rows + token * rotation_stride + dimensions, mask=is_dimension, other=0.0)
    sin = tl.load(sin_rows + token * rotation_stride + dimensions, mask=is_dimension, other=0.0)
    if HAS_NORMS:
        is_query = head < NUM_HEADS
        factor = _head_factors(query_weight, key_weight, is_query, dimensions, is_dimension)
        factor_2 = _head_factors(
            query_weight + HALF, key_weight + HALF, is_query, dimensions, is_dimension
        )
    wait_for_inputs(STARTS_EARLY)
    place = token * (NUM_ALL * HEAD_DIM) + head[:, None] * HEAD_DIM + dimensions[None, :]
    loaded_first = tl.load(qkv + place, mask=is_element, other=0.0)
    loaded_second = tl.load(qkv + place + HALF, mask=is_element, other=0.0)

    first, second = loaded_first.to(tl.float32), loaded_second.to(tl.float32)
    if HAS_NORMS:
        mean_square = tl.sum(first * first + second * second, axis=1) / HEAD_DIM
        scale = tl.rsqrt(mean_square + eps)[:, None]
        first = ((first * scale).to(dtype).to(tl.float32) * factor).to(dtype).to(tl.float32)
        second = ((second * scale).to(dtype).to(tl.float32) * factor_2).to(dtype).to(tl.float32)
    rotated_first = (first * cos[None, :] - second * sin[None, :]).to(dtype)
    rotated_second = (second * cos[None, :] + first * sin[None, :]).to(dtype)
    is_rotated = is_element & (head < NUM_ROTATED)[:, None]
    tl.store(qkv + place, rotated_first, mask=is_rotated)
    tl.store(qkv + place + HALF, rotated_second, mask=is_rotated)

    is_stored = is_element & (slot >= 0)
    pool_row = slot * (NUM_KV_HEADS * HEAD_DIM) + dimensions[None, :]
    key_place = pool_row + (head - NUM_HEADS)[:, None] * HEAD_DIM
    is_key = is_stored & ((head >= NUM_HEADS) & (head < NUM_ROTATED))[:, None]
    tl.store(key_cache + key_place, rotated_first, mask=is_key)
    tl.store(key_cache + key_place + HALF, rotated_second, mask=is_key)
    value_place = pool_row + (head - NUM_ROTATED)[:, None] * HEAD_DIM
    is_stored_value = is_stored & is_value[:, None]
    tl.store(value_cache + value_place, loaded_first, mask=is_stored_value)
    tl.store(value_cache + value_place + HALF, loaded_second, mask=is_stored_value)
