"""Attention of decoding rows as batched matrix products, for CPUs that multiply bfloat16.

`scaled_dot_product_attention` handles every KV head of every row by itself, and a few queries
against a few hundred keys are too little work for what each such problem costs to set up. Here a
row is one problem: its queries are spread out to a block-diagonal matrix, each in the columns of
its KV head, so that keys and values are multiplied as they lie in the pool, all heads at once. The
zeros cost nothing that matrix units notice as long as there are few KV heads.
"""

import torch

from nanobatch.kernels.attention_plan import DenseGroup
from nanobatch.kernels.cpu_matrix import has_bfloat16_units

MAX_KV_HEADS = 4
"""With more KV heads the zeros cost more than the problems saved."""


def is_multiplied(queries: torch.Tensor, keys: torch.Tensor) -> bool:
    """Whether `multiply_rows` is the faster way for these [n, ...] queries and [k, ...] keys."""
    return (
        queries.device.type == "cpu"
        and queries.dtype == torch.bfloat16
        and keys.shape[1] <= MAX_KV_HEADS
        and has_bfloat16_units()
    )


def multiply_rows(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    group: DenseGroup,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with pieces of one query.

    Scores are rounded to bfloat16, as in the eager attention of transformers; softmax is in fp32.

    Args:
        queries: [num_pieces, num_heads, head_dim].
        keys: [num_pieces * num_keys, num_kv_heads, head_dim].
        values: Likewise.
        group: The pieces.
        scale: Multiplies the scores before softmax.

    Returns:
        [num_pieces, num_heads, head_dim], and the log-sum-exps of the scores
        [num_pieces, num_heads], fp32.
    """
    num_pieces, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    spread_shape = (num_pieces, num_kv_heads, num_heads // num_kv_heads, num_kv_heads, head_dim)
    spread = queries.new_zeros(spread_shape)
    _own_heads(spread).copy_(queries.view(*spread_shape[:3], head_dim))
    flat_shape = (num_pieces, -1, num_kv_heads * head_dim)
    products = torch.bmm(spread.view(flat_shape), keys.view(flat_shape).transpose(1, 2))
    scores = products.float().mul_(scale)  # [num_pieces, num_heads, num_keys]
    if group.bias is not None:
        scores += group.bias
    maxima = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(maxima).exp_()
    sums = weights.sum(dim=-1, keepdim=True)
    log_weights = (maxima + sums.log()).squeeze(2)
    shares = weights.div_(sums).to(values.dtype)
    attended = torch.bmm(shares, values.view(flat_shape)).view(spread_shape)
    return _own_heads(attended).reshape(queries.shape), log_weights


def _own_heads(spread: torch.Tensor) -> torch.Tensor:
    """View [n, kv_heads, group, kv_heads, dim] on its diagonal as [n, kv_heads, group, dim]."""
    return spread.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
