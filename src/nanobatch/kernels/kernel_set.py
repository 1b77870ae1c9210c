"""The operations of a decoder layer that exist twice: in plain torch and fused for a GPU.

Layers get a `KernelSet` in their constructor and do not know which one it is. `torch_kernels` is
the reference and what CPUs run; `gpu.triton_kernels` does the same in one kernel each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
    """RMSNorm of every query and key head before rotation (Qwen3).

    Attributes:
        query_weight: [head_dim].
        key_weight: [head_dim].
        eps: Inside the square root.
    """

    query_weight: torch.Tensor
    key_weight: torch.Tensor
    eps: float


class PackedMatrix(Protocol):
    """A weight matrix in the form in which its kernel wants it."""

    def product(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return hidden Wᵀ + bias: [num_tokens, in_features] to [num_tokens, out_features]."""
        ...


class GatedMatrix:
    """A gate over what it gates, [2 * size, in_features], as a product and an activation.

    Args:
        matrix: The weight.
        silu_mul: `KernelSet.silu_mul`.
    """

    def __init__(
        self, matrix: PackedMatrix, silu_mul: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._matrix = matrix
        self._silu_mul = silu_mul

    def product(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return silu(gate) * up: [num_tokens, in_features] to [num_tokens, size]."""
        return self._silu_mul(self._matrix.product(hidden, bias))


class HeadMatrix(Protocol):
    """The rows of a vocabulary in the form in which logits are computed from them."""

    @property
    def num_packed_bytes(self) -> int:
        """Bytes held beside the weight it was made from; 0 where it reads that weight."""
        ...

    def logits(self, hidden: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Map [n, hidden_size] to [n, vocab_size] in fp32 (float64 in float64).

        Args:
            hidden: [n, hidden_size], contiguous.
            out: [n, vocab_size] to write to, or None for a new tensor.
        """
        ...


class KernelSet(Protocol):
    """Fused operations; all take contiguous tensors unless they say otherwise.

    None keeps state that its results depend on; what it derives from a step's tensors it may keep
    for the step's other layers.
    """

    def pack_matrix(self, weight: torch.Tensor) -> PackedMatrix:
        """Take over a loaded weight [out_features, in_features]."""
        ...

    def pack_gated_matrix(self, weight: torch.Tensor) -> PackedMatrix:
        """Take over a loaded gate over what it gates, [2 * size, in_features].

        Its product is silu(gate) * up, [num_tokens, size].
        """
        ...

    def pack_head(self, weight: torch.Tensor) -> HeadMatrix:
        """Prepare the loaded rows of a vocabulary [vocab_size, hidden_size] for logits."""
        ...

    def rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        """Normalise [num_tokens, size]: x / sqrt(mean(x²) + eps) * weight, in a new tensor."""
        ...

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a block's output to the residual stream and normalise the sum.

        Args:
            hidden: [num_tokens, size] output of a block.
            residual: [num_tokens, size]; may be overwritten with the sum.
            weight: [size].
            eps: Inside the square root.

        Returns:
            The normalised sum and the sum, rounded to the dtype before it is normalised.
        """
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Map [num_tokens, 2 * size] to silu(first half) * second half, [num_tokens, size]."""
        ...

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        *,
        norms: HeadNorms | None,
        num_heads: int,
        slot_mapping: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Normalise and rotate a step's query and key heads, store keys and values in the pool.

        Args:
            qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]; may be overwritten.
            rotation: cos and sin, each [num_tokens, head_dim / 2], fp32 (float64 in float64).
            norms: Norms of the heads, or None.
            num_heads: Query heads of this rank.
            slot_mapping: [num_tokens] int64; a token with slot -1 is not stored.
            key_cache: [num_blocks, block_size, num_kv_heads, head_dim], written.
            value_cache: [num_blocks, block_size, num_kv_heads, head_dim], written.

        Returns:
            Query [num_tokens, num_heads, head_dim], key and value
            [num_tokens, num_kv_heads, head_dim]; the last dimension is contiguous, the others
            may be strided.
        """
        ...
