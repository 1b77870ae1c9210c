"""RMSNorm (Zhang and Sennrich 2019)."""

import torch
from torch import nn

from nanobatch.layers.weights import WeightSlot, copier, empty_weight


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight, over the last dimension, never in place.

    Half precision is normalised in fp32 and rounded before the weight is applied, as the
    checkpoints were trained; fp32 and float64 stay as they are.
    """

    def __init__(self, size: int, *, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        """Reserve a weight of `size` elements."""
        super().__init__()
        self.eps = eps
        self.weight = empty_weight(size, dtype=dtype, device=device)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalise [..., size]."""
        exact = hidden if hidden.dtype == torch.float64 else hidden.float()
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (exact * scale).to(hidden.dtype)

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Return the slot of the weight."""
        return {"weight": WeightSlot(shape=tuple(self.weight.shape), store=copier(self.weight))}
