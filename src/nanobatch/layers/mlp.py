"""The gated feed-forward block (SwiGLU, Shazeer 2020)."""

import torch
from torch import nn

from nanobatch.kernels.kernel_set import KernelSet
from nanobatch.layers.linear import FeatureShard, GatedColumnParallelLinear, RowParallelLinear
from nanobatch.layers.weights import WeightSlot, with_prefix
from nanobatch.parallel.group import TensorParallelGroup


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with gate and up as one matrix multiplication."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        group: TensorParallelGroup,
        kernels: KernelSet,
    ) -> None:
        """Reserve the weights of this rank's share of the intermediate features."""
        super().__init__()
        shard = FeatureShard.even(intermediate_size, group)
        self.gate_up = GatedColumnParallelLinear(
            hidden_size,
            shard,
            has_bias=has_bias,
            dtype=dtype,
            device=device,
            kernels=kernels,
        )
        self.down = RowParallelLinear(
            intermediate_size,
            hidden_size,
            has_bias=has_bias,
            dtype=dtype,
            device=device,
            group=group,
            kernels=kernels,
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [num_tokens, hidden_size] to the same shape."""
        return self.down.forward(self.gate_up.forward(hidden))

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Return the slots of the three projections."""
        return {**self.gate_up.weight_slots(), **with_prefix("down_proj", self.down.weight_slots())}
