"""RMSNorm (Zhang and Sennrich 2019), alone or fused with the addition before it."""

import torch
from torch import nn

from nanobatch.kernels.kernel_set import KernelSet
from nanobatch.layers.weights import WeightSlot, copier, empty_weight


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight, over the last dimension."""

    def __init__(
        self,
        size: int,
        *,
        eps: float,
        dtype: torch.dtype,
        device: torch.device,
        kernels: KernelSet,
    ) -> None:
        """Reserve a weight of `size` elements."""
        super().__init__()
        self.eps = eps
        self.kernels = kernels
        self.weight = empty_weight(size, dtype=dtype, device=device)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalise [num_tokens, size] in a new tensor."""
        return self.kernels.rms_norm(hidden, self.weight, eps=self.eps)

    def add_and_normalise(
        self, hidden: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a block's output to the residual stream, then normalise the sum.

        Args:
            hidden: [num_tokens, size] output of a block.
            residual: [num_tokens, size], may be overwritten; None before the first block, whose
                input is all there is of the stream.

        Returns:
            The normalised sum and the sum.
        """
        if residual is None:
            return self.forward(hidden), hidden
        return self.kernels.add_rms_norm(hidden, residual, self.weight, eps=self.eps)

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Return the slot of the weight."""
        return {"weight": WeightSlot(shape=tuple(self.weight.shape), store=copier(self.weight))}
