"""The ranks that share one model's weights, and the two collectives that its layers need.

Knows `torch.distributed`, not who launched the ranks or what they compute. Layers take a
`TensorParallelGroup` in their constructor; a group of one rank does nothing and costs nothing.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallelGroup:
    """One rank's view of the ranks among which a model's matrices are split.

    Attributes:
        rank: This rank's place in the group.
        size: Ranks in the group.
        process_group: What collectives run on; None for a group of one.
    """

    rank: int = 0
    size: int = 1
    process_group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size, "rank outside the group"
        assert self.size == 1 or self.process_group is not None, "ranks without a connection"

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tensors, written into `tensor` itself."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.process_group)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return all ranks' tensors joined along the last dimension, in the order of ranks.

        Args:
            tensor: [..., n], of the same shape on every rank.

        Returns:
            [..., size * n].
        """
        if self.size == 1:
            return tensor
        pieces = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(pieces, tensor.contiguous(), group=self.process_group)
        return torch.cat(pieces, dim=-1)


SINGLE_RANK = TensorParallelGroup()
"""The group of a model that one rank holds whole."""
