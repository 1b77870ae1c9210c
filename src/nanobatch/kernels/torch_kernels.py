"""The operations of a decoder layer in plain torch: the reference, and what CPUs run.

Half precision is computed in fp32 where an intermediate rounding would cost accuracy; fp32 and
float64 stay as they are.
"""

import torch
from torch.nn.functional import rms_norm, silu

from nanobatch.kernels.cpu_matrix import (
    DenseMatrix,
    PrepackedGatedMatrix,
    can_prepack,
    pack_head,
    pack_matrix,
)
from nanobatch.kernels.kernel_set import GatedMatrix, HeadMatrix, HeadNorms, PackedMatrix
from nanobatch.kernels.kv_cache import store_keys_values


class TorchKernels:
    """A `KernelSet` for any device and data type."""

    def pack_matrix(self, weight: torch.Tensor) -> PackedMatrix:
        """Take over a loaded weight [out_features, in_features] (see `cpu_matrix`)."""
        return pack_matrix(weight)

    def pack_gated_matrix(self, weight: torch.Tensor) -> PackedMatrix:
        """Take over a loaded gate over what it gates (see `cpu_matrix`)."""
        if can_prepack(weight):
            return PrepackedGatedMatrix(weight)
        return GatedMatrix(DenseMatrix(weight), self.silu_mul)

    def pack_head(self, weight: torch.Tensor) -> HeadMatrix:
        """Prepare the loaded rows of a vocabulary for logits (see `cpu_matrix`)."""
        return pack_head(weight)

    def rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        """Normalise [num_tokens, size] (see `normalise`)."""
        return normalise(hidden, weight, eps=eps)

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised sum of a block's output and the residual stream, and the sum."""
        total = residual.add_(hidden)
        return normalise(total, weight, eps=eps), total

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Map [num_tokens, 2 * size] to silu(first half) * second half."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate).mul_(up)

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
        """Normalise, rotate and store a step's heads (see `KernelSet.rotate_and_store`)."""
        num_kv_heads, head_dim = key_cache.shape[2:]
        heads = qkv.view(len(qkv), -1, head_dim)  # [num_tokens, num_heads + 2 * kv_heads, head_dim]
        num_rotated = num_heads + num_kv_heads
        query_key, value = heads[:, :num_rotated], heads[:, num_rotated:]
        if norms is not None:
            query = normalise(query_key[:, :num_heads], norms.query_weight, eps=norms.eps)
            key = normalise(query_key[:, num_heads:], norms.key_weight, eps=norms.eps)
            query_key = torch.cat((query, key), dim=1)
        rotated = rotate(query_key, *rotation)
        query, key = rotated[:, :num_heads], rotated[:, num_heads:]
        _store_real_tokens(key, value, key_cache, value_cache, slot_mapping=slot_mapping)
        return query, key, value


def normalise(hidden: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) * weight over the last dimension, in a new tensor.

    Half precision is normalised in fp32 and rounded before the weight is applied, as the
    checkpoints were trained (Zhang and Sennrich 2019, in the form of Llama).
    """
    return rms_norm(hidden, hidden.shape[-1:], eps=eps).mul_(weight)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (i, i + head_dim / 2) of dimensions (Su et al. 2021).

    Half precision is rotated in fp32 and rounded once, at the end.

    Args:
        heads: [num_tokens, num_heads, head_dim].
        cos: [num_tokens, head_dim / 2], fp32 (float64 in float64).
        sin: [num_tokens, head_dim / 2], likewise.

    Returns:
        A new tensor of the shape and data type of `heads`.
    """
    first, second = heads.to(cos.dtype).chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]  # [num_tokens, 1, head_dim / 2]
    rotated = heads.new_empty(heads.shape, dtype=cos.dtype)
    low, high = rotated.chunk(2, dim=-1)
    torch.mul(first, cos, out=low).sub_(second * sin)
    torch.mul(second, cos, out=high).add_(first * sin)
    return rotated.to(heads.dtype)


def _store_real_tokens(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    slot_mapping: torch.Tensor,
) -> None:
    """Store the tokens that have a slot. Waits for the device: not for a captured graph."""
    if int(slot_mapping.min()) < 0:
        is_real = slot_mapping >= 0
        key, value, slot_mapping = key[is_real], value[is_real], slot_mapping[is_real]
    store_keys_values(key, value, key_cache, value_cache, slot_mapping=slot_mapping)
