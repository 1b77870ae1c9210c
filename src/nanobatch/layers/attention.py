"""Self-attention over the paged KV cache: projections, head norms, rotation, store, attend."""

import torch
from torch import nn

from nanobatch.config import ModelConfig
from nanobatch.kernels.kernel_set import HeadNorms, KernelSet
from nanobatch.kernels.step_attention import StepAttention
from nanobatch.layers.linear import FeatureShard, MergedColumnParallelLinear, RowParallelLinear
from nanobatch.layers.weights import WeightSlot, copier, empty_weight, with_prefix
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
        kernels: KernelSet,
    ) -> None:
        """Reserve the weights of this rank's heads."""
        super().__init__()
        self.kernels = kernels
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
            kernels=kernels,
        )
        self.o = RowParallelLinear(
            model_config.num_heads * head_dim,
            model_config.hidden_size,
            has_bias=model_config.has_o_bias,
            dtype=dtype,
            device=device,
            group=group,
            kernels=kernels,
        )
        self.head_norms: HeadNorms | None = None
        if model_config.has_qk_norm:
            self.query_norm_weight = empty_weight(head_dim, dtype=dtype, device=device)
            self.key_norm_weight = empty_weight(head_dim, dtype=dtype, device=device)
            self.head_norms = HeadNorms(
                query_weight=self.query_norm_weight,
                key_weight=self.key_norm_weight,
                eps=model_config.rms_norm_eps,
            )

    def forward(
        self,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        *,
        attention: StepAttention,
        slot_mapping: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
    ) -> torch.Tensor:
        """Store a step's keys and values, then attend.

        Args:
            hidden: [num_tokens, hidden_size].
            rotation: cos and sin, each [num_tokens, head_dim / 2].
            attention: Attends in this step and window.
            slot_mapping: [num_tokens] int64.
            key_cache: [num_blocks, block_size, num_kv_heads, head_dim], written.
            value_cache: [num_blocks, block_size, num_kv_heads, head_dim], written.

        Returns:
            [num_tokens, num_heads * head_dim]: this rank's heads, before `project`.
        """
        query, key, value = self.kernels.rotate_and_store(
            self.qkv.forward(hidden),
            rotation,
            norms=self.head_norms,
            num_heads=self.num_heads,
            slot_mapping=slot_mapping,
            key_cache=key_cache,
            value_cache=value_cache,
        )
        attended = attention.attend(
            query,
            key,
            value,
            key_cache=key_cache,
            value_cache=value_cache,
            scale=self.scale,
        )
        return attended.flatten(1)  # [num_tokens, num_heads * head_dim]

    def project(self, attended: torch.Tensor) -> torch.Tensor:
        """Map [n, num_heads * head_dim] of this rank to [n, hidden_size] of the whole model."""
        return self.o.forward(attended)

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Return the slots of projections and head norms."""
        slots = {**self.qkv.weight_slots(), **with_prefix("o_proj", self.o.weight_slots())}
        if self.head_norms is not None:
            slots["q_norm.weight"] = _vector_slot(self.head_norms.query_weight)
            slots["k_norm.weight"] = _vector_slot(self.head_norms.key_weight)
        return slots


def _vector_slot(weight: torch.Tensor) -> WeightSlot:
    return WeightSlot(shape=tuple(weight.shape), store=copier(weight))


def _head_features(heads: FeatureShard, head_dim: int) -> FeatureShard:
    return FeatureShard(
        full_size=heads.full_size * head_dim,
        start=heads.start * head_dim,
        size=heads.size * head_dim,
    )
