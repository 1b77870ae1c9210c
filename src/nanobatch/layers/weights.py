"""How a layer says which checkpoint tensors it needs and where they go.

A layer knows the names and full shapes of its tensors and keeps its rank's share of each; the
loader compares names and shapes with the checkpoint before it reads a single weight.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSlot:
    """A place for one checkpoint tensor.

    Attributes:
        shape: Shape of the tensor in the checkpoint, before it is split among ranks.
        store: Copies this rank's share of the whole tensor into the layer.
    """

    shape: tuple[int, ...]
    store: Callable[[torch.Tensor], None]


@runtime_checkable
class FinishesLoading(Protocol):
    """A module that does something once all weights are stored."""

    def finish_loading(self) -> None:
        """Bring the stored weights into their final form."""
        ...


def with_prefix(prefix: str, slots: Mapping[str, WeightSlot]) -> dict[str, WeightSlot]:
    """Return the slots with `prefix` and a dot before each name."""
    return {f"{prefix}.{name}": slot for name, slot in slots.items()}


def copier(
    target: torch.Tensor, source_index: slice | tuple[slice, ...] = slice(None)
) -> Callable[[torch.Tensor], None]:
    """Return a function that copies one part of a whole tensor over `target`."""

    def copy(whole: torch.Tensor) -> None:
        target.copy_(whole[source_index])

    return copy


def empty_weight(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.nn.Parameter:
    """Return an uninitialised tensor that a slot will fill; it never needs a gradient."""
    return torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
