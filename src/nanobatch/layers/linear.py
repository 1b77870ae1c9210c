"""Matrix multiplications whose weights are split among ranks (Megatron-LM, Shoeybi et al. 2019).

A column-parallel layer holds some output features and needs no communication; a row-parallel
layer holds some input features and ends with an all-reduce. Several checkpoint matrices that
read the same input are merged into one.
Kernels choose the form in which a loaded matrix is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from nanobatch.kernels.cpu_matrix import DenseMatrix
from nanobatch.kernels.kernel_set import GatedMatrix, KernelSet, PackedMatrix
from nanobatch.layers.weights import WeightSlot, copier, empty_weight
from nanobatch.parallel.group import TensorParallelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureShard:
    """The output features of one checkpoint matrix that a rank holds.

    Attributes:
        full_size: Output features of the whole matrix.
        start: First feature that this rank holds.
        size: Features that this rank holds.
    """

    full_size: int
    start: int
    size: int

    @classmethod
    def even(cls, full_size: int, group: TensorParallelGroup) -> "FeatureShard":
        """Return this rank's share of features that the group divides evenly."""
        assert full_size % group.size == 0, "sizes are checked before layers are built"
        size = full_size // group.size
        return cls(full_size=full_size, start=group.rank * size, size=size)


class MergedColumnParallelLinear(nn.Module):
    """y = x Wᵀ + b, where W stacks several checkpoint matrices, each split by output features."""

    def __init__(
        self,
        in_features: int,
        shards: Mapping[str, FeatureShard],
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        kernels: KernelSet,
    ) -> None:
        """Reserve the weights.

        Args:
            in_features: Size of the input, whole on every rank.
            shards: Checkpoint name (such as `q_proj`) to this rank's share, in output order.
            has_bias: Each matrix has a bias.
            dtype: Data type of the weights.
            device: Where they live.
            kernels: Chooses the form of the loaded matrix.
        """
        super().__init__()
        self.in_features = in_features
        self.shards = dict(shards)
        self.kernels = kernels
        out_features = sum(shard.size for shard in shards.values())
        self.weight = empty_weight(out_features, in_features, dtype=dtype, device=device)
        self.bias = empty_weight(out_features, dtype=dtype, device=device) if has_bias else None
        self.matrix: PackedMatrix = DenseMatrix(self.weight)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [num_tokens, in_features] to this rank's [num_tokens, out_features]."""
        return self.matrix.product(hidden, self.bias)

    def finish_loading(self) -> None:
        """Give the loaded weight up for what the kernels multiply by; nothing is stored after."""
        self.matrix = self.kernels.pack_matrix(self.weight.detach())
        del self.weight

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Return a slot per checkpoint matrix and bias."""
        slots: dict[str, WeightSlot] = {}
        offset = 0
        for name, shard in self.shards.items():
            rows = slice(offset, offset + shard.size)
            source_rows = slice(shard.start, shard.start + shard.size)
            slots[f"{name}.weight"] = WeightSlot(
                shape=(shard.full_size, self.in_features),
                store=copier(self.weight[rows], source_rows),
            )
            if self.bias is not None:
                slots[f"{name}.bias"] = WeightSlot(
                    shape=(shard.full_size,), store=copier(self.bias[rows], source_rows)
                )
            offset += shard.size
        return slots


class GatedColumnParallelLinear(MergedColumnParallelLinear):
    """y = silu(x Gᵀ) * (x Uᵀ), where W stacks this rank's share of a gate G and of U."""

    def __init__(
        self,
        in_features: int,
        shard: FeatureShard,
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        kernels: KernelSet,
    ) -> None:
        """Reserve the weights (see `MergedColumnParallelLinear`)."""
        super().__init__(
            in_features,
            {"gate_proj": shard, "up_proj": shard},
            has_bias=has_bias,
            dtype=dtype,
            device=device,
            kernels=kernels,
        )
        self.matrix = GatedMatrix(self.matrix, kernels.silu_mul)

    def finish_loading(self) -> None:
        """Give the loaded weight up for what the kernels multiply by; nothing is stored after."""
        self.matrix = self.kernels.pack_gated_matrix(self.weight.detach())
        del self.weight


class RowParallelLinear(nn.Module):
    """y = x Wᵀ + b with W split by input features; the ranks' products are added up."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        group: TensorParallelGroup,
        kernels: KernelSet,
    ) -> None:
        """Reserve the weights.

        Args:
            in_features: Size of the whole input; each rank reads its share.
            out_features: Size of the output, whole on every rank.
            has_bias: Add a bias, once, after the sum over ranks.
            dtype: Data type of the weights.
            device: Where they live.
            group: Ranks that share the matrix.
            kernels: Chooses the form of the loaded matrix.
        """
        super().__init__()
        self.in_features = in_features
        self.shard = FeatureShard.even(in_features, group)
        self.group = group
        self.kernels = kernels
        self.weight = empty_weight(out_features, self.shard.size, dtype=dtype, device=device)
        self.bias = empty_weight(out_features, dtype=dtype, device=device) if has_bias else None
        self.matrix: PackedMatrix = DenseMatrix(self.weight)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map this rank's [num_tokens, in_features / size] to [num_tokens, out_features]."""
        if self.group.size == 1:
            return self.matrix.product(hidden, self.bias)
        summed = self.group.all_reduce(self.matrix.product(hidden, None))
        return summed if self.bias is None else summed + self.bias

    def finish_loading(self) -> None:
        """Give the loaded weight up for what the kernels multiply by; nothing is stored after."""
        self.matrix = self.kernels.pack_matrix(self.weight.detach())
        del self.weight

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Return the slots of the matrix and its bias."""
        out_features = self.weight.shape[0]
        columns = slice(self.shard.start, self.shard.start + self.shard.size)

        slots = {
            "weight": WeightSlot(
                shape=(out_features, self.in_features),
                store=copier(self.weight, (slice(None), columns)),
            )
        }
        if self.bias is not None:
            slots["bias"] = WeightSlot(shape=(out_features,), store=copier(self.bias))
        return slots
