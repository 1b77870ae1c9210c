"""Attention over paged keys and values in plain torch: the reference, and what CPUs run.

Works through an `AttentionPlan`: take a problem's keys and values out of the pool, compute it
densely, put the result in its place. `scaled_dot_product_attention` accumulates in fp32 for half
precision. Query heads that share a KV head are folded into its queries, so that each key is read
once per KV head: its `enable_gqa` is 14 times slower on CPU.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from nanobatch.kernels.attention_plan import AttentionPlan, DenseGroup
from nanobatch.kernels.shared_part import SharedPart, put, select

KeysValues = tuple[torch.Tensor, torch.Tensor]

KeysOf = Callable[[int, torch.Tensor, torch.Tensor], KeysValues]
"""Returns the keys and values of a plan's group, [num_pieces, num_keys, num_kv_heads, head_dim]
each, from the group's index and the pools of slots."""


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    plan: AttentionPlan,
    scale: float,
    out: torch.Tensor,
    keys_of: KeysOf | None = None,
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
        keys_of: Who has the keys and values of a group at hand; None takes them from the pool.

    Returns:
        `out`.
    """
    key_pool, value_pool = key_cache.flatten(0, 1), value_cache.flatten(0, 1)
    shared = attend_shared_keys(query, key_pool, value_pool, plan=plan, scale=scale)
    for index, group in enumerate(plan.groups):
        if keys_of is None:
            keys, values = _from_pool(group, key_pool), _from_pool(group, value_pool)
        else:
            keys, values = keys_of(index, key_pool, value_pool)
        queries = select(query, group.tokens)
        attend = _attend_tiles if group.num_queries > 1 else _attend_rows
        attended, log_weights = attend(queries, keys, values, group=group, scale=scale)
        if shared is not None:
            assert log_weights is not None, "only CPUs share keys"
            attended = shared.merged(group.tokens, attended, log_weights)
        put(out, group.tokens, attended)
    return out


def attend_shared_keys(
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    *,
    plan: AttentionPlan,
    scale: float,
) -> SharedPart | None:
    """Attend to the keys that several sequences share; None where there are none.

    Args:
        query: [num_tokens, num_heads, head_dim].
        key_pool: [num_slots, num_kv_heads, head_dim].
        value_pool: [num_slots, num_kv_heads, head_dim].
        plan: Of the step.
        scale: Multiplies the scores before softmax.
    """
    part: SharedPart | None = None
    for shared in plan.shared:
        keys, values = select(key_pool, shared.slots), select(value_pool, shared.slots)
        queries = select(query, shared.tokens)
        attended, log_weights = _attend_shared(queries, keys, values, scale=scale)
        if len(plan.shared) == 1 and len(queries) == len(query):
            return SharedPart(attended, log_weights)  # of all tokens, in their order
        if part is None:
            part = SharedPart.nothing(query, like=attended)
        part.add(shared.tokens, attended, log_weights)
    return part


def _attend_tiles(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    group: DenseGroup,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend with pieces of several queries, one of the query heads that share keys at a time.

    Returns:
        [num_pieces * num_queries, num_heads, head_dim] and log-weights (see `_attend`).
    """
    grouped_shape = (group.num_pieces, group.num_queries, keys.shape[2], -1, queries.shape[2])
    attended = torch.empty_like(queries, memory_format=torch.contiguous_format)
    targets = attended.view(grouped_shape).unbind(3)
    mask, log_weights = _mask(group, queries), []
    for head_queries, target in zip(queries.view(grouped_shape).unbind(3), targets, strict=True):
        result, weights = _attend(
            head_queries.transpose(1, 2),  # [num_pieces, num_kv_heads, num_queries, head_dim]
            keys.transpose(1, 2),
            values.transpose(1, 2),
            mask=mask,
            scale=scale,
        )
        target.copy_(result.transpose(1, 2))
        if weights is not None:
            log_weights.append(weights.transpose(1, 2))  # [num_pieces, num_queries, num_kv_heads]
    if not log_weights:
        return attended, None
    return attended, torch.stack(log_weights, dim=3).view(attended.shape[:2])


def _attend_rows(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    group: DenseGroup,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend with pieces of one query.

    Returns:
        [num_pieces, num_kv_heads, group, head_dim] and log-weights (see `_attend`).
    """
    return _attend(
        _fold_heads(queries, keys.shape[2]),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        mask=_mask(group, queries),
        scale=scale,
    )


def _attend_shared(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with n queries to the same keys.

    Returns:
        [n, num_kv_heads, group, head_dim] and log-weights [n, num_kv_heads, group].
    """
    folded = _fold_heads(queries, keys.shape[1]).transpose(0, 1)  # [num_kv_heads, n, group, dim]
    attended, log_weights = _attend(
        folded.flatten(1, 2)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        mask=None,
        scale=scale,
    )  # [1, num_kv_heads, n * group, dim], [1, num_kv_heads, n * group]
    assert log_weights is not None, "only CPUs share keys"
    log_weights = log_weights.view(folded.shape[:3])
    return attended[0].reshape(folded.shape).transpose(0, 1), log_weights.transpose(0, 1)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend in dense batches [n, num_heads, k, head_dim].

    Returns:
        The attention, and on a CPU the log-sum-exp of each query's scores, [n, num_heads, k].
    """
    if query.device.type != "cpu":
        attended = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        return attended, None
    attended, log_weights = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=mask, scale=scale
    )
    return attended, log_weights


def _fold_heads(queries: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """View [n, num_heads, head_dim] as [n, num_kv_heads, group, head_dim]."""
    return queries.view(len(queries), num_kv_heads, -1, queries.shape[2])


def _from_pool(group: DenseGroup, pool: torch.Tensor) -> torch.Tensor:
    """Take a group's keys, or values: [num_pieces, num_keys, num_kv_heads, head_dim]."""
    return select(pool, group.slots).view(group.num_pieces, group.num_keys, *pool.shape[1:])


def _mask(group: DenseGroup, queries: torch.Tensor) -> torch.Tensor | None:
    """Return a group's bias, the same for all heads, in a data type that SDPA takes.

    On a CPU that is fp32 for half precision too. With float64 queries torch 2.13 takes an fp32
    mask as well, and reads it wrongly.
    """
    if group.bias is None:
        return None
    bias = group.bias[:, None]  # [num_pieces, 1, num_queries, num_keys]
    is_taken = queries.device.type == "cpu" and queries.dtype != torch.float64
    return bias if is_taken else bias.to(queries.dtype)
