"""What a decoder layer computes between its products, as functions that are compiled.

Each is plain torch and gives the same uncompiled. Half precision is computed in fp32 and rounded
once, where it leaves a function. Sizes are written so that the compiler's innermost loops run over
neighbouring elements: a score is summed over dimensions with 32 keys side by side, which is why
kept keys lie in blocks of that many.
"""

from typing import Final

import torch

KEY_LANES: Final = 32
"""Keys that lie side by side: a cache line of half precision."""


def add_rms_norm(
    hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, ...]:
    """Add a block's output to the residual stream and normalise the sum.

    Args:
        hidden: [num_tokens, size].
        residual: [num_tokens, size].
        weight: [size].
        eps: Inside the square root.

    Returns:
        The normalised sum and the sum.
    """
    total = residual + hidden
    return _normalised(total.float(), weight, eps=eps).to(hidden.dtype), total


def rotate_and_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Rotate queries and keys, and store keys and values.

    Args:
        qkv: [num_tokens, num_heads + 2 * num_kv_heads, head_dim].
        cos: [num_tokens, head_dim / 2], fp32.
        sin: [num_tokens, head_dim / 2], fp32.
        slot_mapping: [num_tokens] int64, all in the pool.
        key_pool: [num_slots, num_kv_heads, head_dim], written.
        value_pool: [num_slots, num_kv_heads, head_dim], written.

    Returns:
        Query [num_tokens, num_heads, head_dim], key and value
        [num_tokens, num_kv_heads, head_dim].
    """
    num_rotated = qkv.shape[1] - key_pool.shape[1]
    heads = qkv[:, :num_rotated].float()
    return _rotate_and_store(heads, qkv, cos, sin, slot_mapping, key_pool, value_pool)


def normalise_rotate_and_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    *,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Normalise each head of queries and keys by [head_dim] weights, then `rotate_and_store`."""
    num_kv_heads = key_pool.shape[1]
    num_heads = qkv.shape[1] - 2 * num_kv_heads
    query = _normalised(qkv[:, :num_heads].float(), query_weight, eps=eps)
    key = _normalised(qkv[:, num_heads : num_heads + num_kv_heads].float(), key_weight, eps=eps)
    heads = torch.cat((query, key), dim=1)
    return _rotate_and_store(heads, qkv, cos, sin, slot_mapping, key_pool, value_pool)


def lay_out_keys(keys: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Bring keys of rows into the layout of `attend_rows`.

    Args:
        keys: [num_rows, num_blocks, KEY_LANES, num_kv_heads, head_dim].

    Returns:
        [num_rows, num_blocks, num_kv_heads, head_dim, KEY_LANES].
    """
    return (keys.permute(0, 1, 3, 4, 2).contiguous(),)


def attend_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_places: torch.Tensor,
    bias: torch.Tensor,
    shared_attended: torch.Tensor,
    shared_log_weights: torch.Tensor,
    *,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    """Append a key to each row, attend with one query to each row's keys, and merge.

    The weight of a part is the sum of its exponentiated scores (Milakov and Gimelshein 2018).

    Args:
        query: [num_rows, num_heads, head_dim].
        key: [num_rows, num_kv_heads, head_dim], new.
        value: [num_rows, num_kv_heads, head_dim], new.
        keys: [num_rows, capacity, num_kv_heads, head_dim, KEY_LANES], written.
        values: [num_rows, capacity, KEY_LANES, num_kv_heads, head_dim], written.
        key_places: [2, num_rows] int64, block and lane that each row's new key belongs to.
        bias: [num_rows, num_blocks, KEY_LANES] fp32, 0 for keys that are seen, else -inf. What lies
            behind its num_blocks is not read.
        shared_attended: [num_rows, num_kv_heads, group, head_dim] fp32, attention over other keys.
        shared_log_weights: [num_rows, num_kv_heads, group] fp32, the logarithm of their weight;
            -inf where there are none.
        scale: Multiplies the scores.

    Returns:
        [num_rows, num_heads, head_dim].
    """
    num_rows, num_blocks = bias.shape[:2]
    num_kv_heads, head_dim = key.shape[1:]
    rows, (blocks, lanes) = torch.arange(num_rows), key_places.unbind()
    keys[rows, blocks, :, :, lanes] = key
    values[rows, blocks, lanes] = value
    grouped = (query.float() * scale).view(num_rows, num_kv_heads, -1, head_dim).unbind(2)
    wide_keys, wide_values = keys[:, :num_blocks].float(), values[:, :num_blocks].float()
    parts = [(head[:, None, :, :, None] * wide_keys).sum(3) for head in grouped]  # read once
    scores = torch.stack(parts, dim=1) + bias[:, None, :, None]
    scores = scores.permute(0, 3, 1, 2, 4).flatten(3)  # [num_rows, num_kv_heads, group, num_keys]
    best = scores.amax(-1, keepdim=True)
    weights = (scores - best).exp()
    total = weights.sum(-1, keepdim=True)
    by_head = wide_values.flatten(1, 2).transpose(1, 2)  # [num_rows, num_kv_heads, num_keys, dim]
    attended = torch.stack(
        [(part[..., None] * by_head).sum(2) for part in weights.unbind(2)], dim=2
    )
    share = torch.sigmoid(shared_log_weights - (best + total.log()).squeeze(-1))[..., None]
    attended = attended / total
    merged = attended + (shared_attended - attended) * share
    return (merged.to(query.dtype).view(query.shape),)


def _normalised(wide: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) * weight of fp32 numbers (Zhang and Sennrich 2019)."""
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()


def _rotate_and_store(
    heads: torch.Tensor,
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Rotate each pair (i, i + head_dim / 2) of dimensions of fp32 heads (Su et al. 2021)."""
    num_rotated = heads.shape[1]
    num_heads = num_rotated - key_pool.shape[1]
    first, second = heads.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    rotated = rotated.to(qkv.dtype)
    query, key = rotated[:, :num_heads].contiguous(), rotated[:, num_heads:].contiguous()
    value = qkv[:, num_rotated:].contiguous()
    key_pool[slot_mapping] = key
    value_pool[slot_mapping] = value
    return query, key, value
