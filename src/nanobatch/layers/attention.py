"""Self-attention over the paged KV cache: projections, head norms, rotation, store, attend."""

import torch
from torch import nn

from nanobatch.config import ModelConfig
from nanobatch.kernels.attention_plan import AttentionPlan
from nanobatch.kernels.kv_cache import store_keys_values
from nanobatch.kernels.paged_attention import paged_attention
from nanobatch.layers.linear import FeatureShard, MergedColumnParallelLinear, RowParallelLinear
from nanobatch.layers.norm import RMSNorm
from nanobatch.layers.rotary import apply_rotary
from nanobatch.layers.weights import WeightSlot, with_prefix
from nanobatch.parallel.group import TensorParallelGroup


def kv_head_shard(num_kv_heads: int, group: TensorParallelGroup) -> FeatureShard:
    """Return the KV heads that a rank holds; with fewer heads than ranks, ranks share one."""
    if num_kv_heads >= group.size:
        return FeatureShard.even(num_kv_heads, group)
    assert group.size % num_kv_heads == 0, "sizes are checked before layers are built"
    start = group.rank * num_kv_heads // group.size
    return FeatureShard(full_size=num_kv_heads, start=start, size=1)


class PagedSelfAttention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023) of one layer."""

    def __init__(
        self,
        model_config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        group: TensorParallelGroup,
    ) -> None:
        """Reserve the weights of this rank's heads."""
        super().__init__()
        self.head_dim = head_dim = model_config.head_dim
        self.scale = head_dim**-0.5
        query_heads = FeatureShard.even(model_config.num_heads, group)
        kv_heads = kv_head_shard(model_config.num_kv_heads, group)
        self.num_heads, self.num_kv_heads = query_heads.size, kv_heads.size
        self.qkv = MergedColumnParallelLinear(
            model_config.hidden_size,
            {
                "q_proj": _head_features(query_heads, head_dim),
                "k_proj": _head_features(kv_heads, head_dim),
                "v_proj": _head_features(kv_heads, head_dim),
            },
            has_bias=model_config.has_qkv_bias,
            dtype=dtype,
            device=device,
        )
        self.o = RowParallelLinear(
            model_config.num_heads * head_dim,
            model_config.hidden_size,
            has_bias=model_config.has_o_bias,
            dtype=dtype,
            device=device,
            group=group,
        )
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if model_config.has_qk_norm:
            eps = model_config.rms_norm_eps
            self.q_norm = RMSNorm(head_dim, eps=eps, dtype=dtype, device=device)
            self.k_norm = RMSNorm(head_dim, eps=eps, dtype=dtype, device=device)

    def forward(
        self,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        *,
        plan: AttentionPlan,
        slot_mapping: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
    ) -> torch.Tensor:
        """Store a step's keys and values, then attend.

        Args:
            hidden: [num_tokens, hidden_size].
            rotation: cos and sin, each [num_tokens, 1, head_dim / 2].
            plan: How this step's attention is computed.
            slot_mapping: [num_tokens] int64.
            key_cache: [num_blocks, block_size, num_kv_heads, head_dim], written.
            value_cache: [num_blocks, block_size, num_kv_heads, head_dim], written.

        Returns:
            [num_tokens, num_heads * head_dim]: this rank's heads, before `project`.
        """
        query, key, value = self._rotated_heads(hidden, rotation)
        store_keys_values(key, value, key_cache, value_cache, slot_mapping=slot_mapping)
        attended = paged_attention(
            query,
            key_cache,
            value_cache,
            plan=plan,
            scale=self.scale,
            out=torch.empty_like(query, memory_format=torch.contiguous_format),
        )
        return attended.flatten(1)  # [num_tokens, num_heads * head_dim]

    def project(self, attended: torch.Tensor) -> torch.Tensor:
        """Map [n, num_heads * head_dim] of this rank to [n, hidden_size] of the whole model."""
        return self.o.forward(attended)

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Return the slots of projections and head norms."""
        slots = {**self.qkv.weight_slots(), **with_prefix("o_proj", self.o.weight_slots())}
        if self.q_norm is not None and self.k_norm is not None:
            slots |= with_prefix("q_norm", self.q_norm.weight_slots())
            slots |= with_prefix("k_norm", self.k_norm.weight_slots())
        return slots

    def _rotated_heads(
        self, hidden: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads = self.qkv.forward(hidden).view(len(hidden), -1, self.head_dim)
        # [num_tokens, num_heads + 2 * num_kv_heads, head_dim]
        num_rotated = self.num_heads + self.num_kv_heads
        query_key, value = heads[:, :num_rotated], heads[:, num_rotated:]
        if self.q_norm is not None and self.k_norm is not None:
            query = self.q_norm.forward(query_key[:, : self.num_heads])
            key = self.k_norm.forward(query_key[:, self.num_heads :])
            query_key = torch.cat((query, key), dim=1)
        rotated = apply_rotary(query_key, *rotation)
        return rotated[:, : self.num_heads], rotated[:, self.num_heads :], value


def _head_features(heads: FeatureShard, head_dim: int) -> FeatureShard:
    return FeatureShard(
        full_size=heads.full_size * head_dim,
        start=heads.start * head_dim,
        size=heads.size * head_dim,
    )
