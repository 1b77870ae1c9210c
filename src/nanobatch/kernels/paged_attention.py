"""Attention over paged keys and values in plain torch: the reference, and what CPUs run.

Works through an `AttentionPlan`: gather a problem's keys and values, compute it densely, put
the result in its place. `scaled_dot_product_attention` accumulates in fp32 for half
precision. Query heads that share a KV head are folded into rows (decode) or a batch (prefill)
by strides alone, so that each key is read once per KV head: its `enable_gqa` is 14 times slower
on CPU.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from nanobatch.kernels.attention_plan import AttentionPlan, DecodeGroup, QueryTile


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    plan: AttentionPlan,
    scale: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """Compute causal attention of a step's queries over their sequences' stored keys.

    Keys and values of the step itself must already be in the pool.

    Args:
        query: [num_tokens, num_heads, head_dim].
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        value_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        plan: What `plan_paged_attention` returned for this step.
        scale: Multiplies the scores before softmax.
        out: [num_tokens, num_heads, head_dim], written in full.

    Returns:
        `out`.
    """
    key_pool, value_pool = key_cache.flatten(0, 1), value_cache.flatten(0, 1)
    scratch_shape = (2, plan.num_scratch_tokens, *key_pool.shape[1:])
    scratch = torch.empty(scratch_shape, dtype=key_pool.dtype, device=query.device)

    def gather(slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = scratch[0, : slots.numel()], scratch[1, : slots.numel()]
        torch.index_select(key_pool, 0, slots, out=keys)
        torch.index_select(value_pool, 0, slots, out=values)
        return keys, values

    for group in plan.decode_groups:
        _attend_decode_group(query, *gather(group.slots), group=group, scale=scale, out=out)
    for chunk in plan.prefill_chunks:
        keys, values = gather(chunk.slots)
        for tile in chunk.tiles:
            _attend_tile(query, keys, values, tile=tile, scale=scale, out=out)
    return out


def _attend_decode_group(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    group: DecodeGroup,
    scale: float,
    out: torch.Tensor,
) -> None:
    num_heads, head_dim = query.shape[1:]
    num_seqs, num_kv_heads = len(group.token_indices), keys.shape[1]
    dense_shape = (num_seqs, group.num_keys, num_kv_heads, head_dim)
    grouped_shape = (num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
    attended = scaled_dot_product_attention(
        query.index_select(0, group.token_indices).view(grouped_shape),
        keys.view(dense_shape).transpose(1, 2),
        values.view(dense_shape).transpose(1, 2),
        attn_mask=group.mask,
        scale=scale,
    )  # [n, num_kv_heads, group, head_dim]
    out.index_copy_(0, group.token_indices, attended.reshape(num_seqs, num_heads, head_dim))


def _attend_tile(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    tile: QueryTile,
    scale: float,
    out: torch.Tensor,
) -> None:
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = keys.shape[1]
    num_groups = num_heads // num_kv_heads
    grouped_shape = (-1, num_kv_heads, num_groups, head_dim)
    # The batch dimension stands for the query heads that share a KV head: keys repeat by stride.
    attended = scaled_dot_product_attention(
        query[tile.tokens].view(grouped_shape).permute(2, 1, 0, 3),  # [group, kv_head, tokens, dim]
        keys[tile.keys].transpose(0, 1).expand(num_groups, -1, -1, -1),
        values[tile.keys].transpose(0, 1).expand(num_groups, -1, -1, -1),
        attn_mask=tile.mask,
        scale=scale,
    )
    out[tile.tokens].view(grouped_shape).copy_(attended.permute(2, 1, 0, 3))
