"""Attention over paged keys and values in plain torch: the reference, and what CPUs run.

Works through an `AttentionPlan`: take a problem's keys and values out of the pool, compute it
densely, put the result in its place. `scaled_dot_product_attention` accumulates in fp32 for half
precision. Query heads that share a KV head are folded into its queries, so that each key is read
once per KV head: its `enable_gqa` is 14 times slower on CPU.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from nanobatch.kernels.attention_plan import AttentionPlan, DenseGroup, KeySlots
from nanobatch.kernels.decode_products import is_multiplied, multiply_rows


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
    merged = MergedParts(query) if plan.shared else None
    for group in plan.groups:
        keys, values = _take(key_pool, group.slots), _take(value_pool, group.slots)
        queries = query.index_select(0, group.tokens)
        if group.num_queries > 1:
            attended = _attend_tiles(queries, keys, values, group=group, scale=scale)
            out.index_copy_(0, group.tokens, attended)
        elif merged is None:
            attended = _attend_rows(queries, keys, values, group=group, scale=scale)
            out.index_copy_(0, group.tokens, attended)
        else:
            attend = multiply_rows if is_multiplied(queries, keys) else _attend_rows_in_part
            part = attend(queries, keys, values, group=group, scale=scale)
            merged.start(group.tokens, *part)
    if merged is not None:
        for shared in plan.shared:
            keys, values = _take(key_pool, shared.slots), _take(value_pool, shared.slots)
            queries = query.index_select(0, shared.tokens)
            merged.add(shared.tokens, *_attend_shared(queries, keys, values, scale=scale))
        merged.write(out)
    return out


class MergedParts:
    """Attention of decoding sequences over parts of their keys, merged as the parts come.

    The weight of a part is the sum of its exponentiated scores (Milakov and Gimelshein 2018). Sums
    are kept in fp32, or float64 for float64.

    Args:
        query: [num_tokens, num_heads, head_dim], whose shape the result has.
    """

    def __init__(self, query: torch.Tensor) -> None:
        dtype = torch.promote_types(query.dtype, torch.float32)
        self._attended = torch.empty_like(query, dtype=dtype)
        self._log_weights = query.new_empty(query.shape[:2], dtype=dtype)
        self._tokens: list[torch.Tensor] = []

    def start(
        self, tokens: torch.Tensor, attended: torch.Tensor, log_weights: torch.Tensor
    ) -> None:
        """Take the first part of some tokens.

        Args:
            tokens: [n] int64.
            attended: [n, num_heads, head_dim] attention over the part alone.
            log_weights: [n, num_heads] logarithm of the part's weight.
        """
        self._tokens.append(tokens)
        self._attended.index_copy_(0, tokens, attended.to(self._attended.dtype))
        self._log_weights.index_copy_(0, tokens, log_weights)

    def add(self, tokens: torch.Tensor, attended: torch.Tensor, log_weights: torch.Tensor) -> None:
        """Take one more part of tokens that have been started (see `start`)."""
        before = self._log_weights.index_select(0, tokens)
        share = torch.sigmoid(log_weights - before)[:, :, None]
        sums = self._attended.index_select(0, tokens)
        self._attended.index_copy_(0, tokens, sums.lerp_(attended.to(sums.dtype), share))
        self._log_weights.index_copy_(0, tokens, torch.logaddexp(before, log_weights))

    def write(self, out: torch.Tensor) -> None:
        """Copy what was merged to [num_tokens, num_heads, head_dim]; other tokens stay."""
        for tokens in self._tokens:
            out.index_copy_(0, tokens, self._attended.index_select(0, tokens).to(out.dtype))


def _take(pool: torch.Tensor, slots: KeySlots) -> torch.Tensor:
    """Return [num_keys, num_kv_heads, head_dim] of a pool [num_slots, ...], a view if it can be."""
    return pool[slots] if isinstance(slots, slice) else pool.index_select(0, slots)


def _attend_tiles(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    group: DenseGroup,
    scale: float,
) -> torch.Tensor:
    """Attend with pieces of several queries, one of the query heads that share keys at a time."""
    grouped_shape = (group.num_pieces, group.num_queries, keys.shape[1], -1, queries.shape[2])
    out = torch.empty_like(queries)
    heads_of = out.view(grouped_shape).unbind(3)
    mask = _mask(group, queries)
    for head, head_queries in enumerate(queries.view(grouped_shape).unbind(3)):
        attended = scaled_dot_product_attention(
            head_queries.transpose(1, 2),  # [num_pieces, num_kv_heads, num_queries, head_dim]
            _heads_first(keys, group),
            _heads_first(values, group),
            attn_mask=mask,
            scale=scale,
        )
        heads_of[head].copy_(attended.transpose(1, 2))
    return out


def _attend_rows(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    group: DenseGroup,
    scale: float,
) -> torch.Tensor:
    """Attend with pieces of one query: [num_pieces, num_heads, head_dim]."""
    if is_multiplied(queries, keys):
        return multiply_rows(queries, keys, values, group=group, scale=scale)[0]
    attended = scaled_dot_product_attention(
        _fold_heads(queries, keys.shape[1]),
        _heads_first(keys, group),
        _heads_first(values, group),
        attn_mask=_mask(group, queries),
        scale=scale,
    )
    return attended.reshape(queries.shape)


def _attend_rows_in_part(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    group: DenseGroup,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with pieces of one query; also return log-weights [num_pieces, num_heads]."""
    attended, log_weights = _flash_attention(
        _fold_heads(queries, keys.shape[1]),
        _heads_first(keys, group),
        _heads_first(values, group),
        attn_mask=_mask(group, queries),
        scale=scale,
    )
    return attended.reshape(queries.shape), log_weights.reshape(queries.shape[:2])


def _attend_shared(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with n queries to the same keys; return [n, num_heads, head_dim] and log-weights."""
    num_kv_heads = keys.shape[1]
    folded = _fold_heads(queries, num_kv_heads).transpose(0, 1)  # [num_kv_heads, n, group, dim]
    attended, log_weights = _flash_attention(
        folded.flatten(1, 2)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=None,
        scale=scale,
    )  # [1, num_kv_heads, n * group, dim], [1, num_kv_heads, n * group]
    attended = attended.view(folded.shape).transpose(0, 1)
    log_weights = log_weights.reshape(folded.shape[:3]).transpose(0, 1)
    return attended.reshape(queries.shape), log_weights.reshape(queries.shape[:2])


def _flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `scaled_dot_product_attention` computes on a CPU, and log-sum-exps of scores."""
    attended, log_weights = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=attn_mask, scale=scale
    )
    return attended, log_weights


def _fold_heads(queries: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """View [n, num_heads, head_dim] as [n, num_kv_heads, group, head_dim]."""
    return queries.view(len(queries), num_kv_heads, -1, queries.shape[2])


def _heads_first(keys: torch.Tensor, group: DenseGroup) -> torch.Tensor:
    """View a group's keys as [num_pieces, num_kv_heads, num_keys, head_dim]."""
    return keys.view(group.num_pieces, group.num_keys, *keys.shape[1:]).transpose(1, 2)


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
