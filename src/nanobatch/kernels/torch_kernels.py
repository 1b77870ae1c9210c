"""The operations of a decoder layer in plain torch: the reference, and what CPUs run.

Half precision is computed in fp32 where an intermediate rounding would cost accuracy; fp32 and
float64 stay as they are.
"""

import math
from typing import Final

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

BLOCK_ELEMENTS: Final = 1 << 17
"""Elements of a prompt's activations that one operation after the other works on: half a megabyte
of fp32 stays in a core's cache from operation to operation."""

Turns = tuple[torch.Tensor, torch.Tensor]
"""What a head is multiplied with and what its halves, exchanged, are multiplied with before both
products are added up: [num_tokens, 1, head_dim] each."""


class TorchKernels:
    """A `KernelSet` for any device and data type."""

    def __init__(self) -> None:
        self._last_turns: tuple[Turns, Turns] | None = None  # of a step: a rotation and its turns

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
        rotated = _rotate_by_turns(query_key, *self._turns_of(rotation))
        query, key = rotated[:, :num_heads], rotated[:, num_heads:]
        _store_real_tokens(key, value, key_cache, value_cache, slot_mapping=slot_mapping)
        return query, key, value

    def _turns_of(self, rotation: tuple[torch.Tensor, torch.Tensor]) -> Turns:
        """Return the turns of a step's rotation, computed by the first layer that asks."""
        last = self._last_turns
        if last is None or last[0] is not rotation:
            last = self._last_turns = rotation, _turns(*rotation)
        return last[1]


def normalise(hidden: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) * weight over the last dimension, in a new tensor.

    Half precision is normalised in fp32 and rounded before the weight is applied, as the
    checkpoints were trained (Zhang and Sennrich 2019, in the form of Llama).
    """
    if hidden.numel() <= BLOCK_ELEMENTS or hidden.is_cuda:
        return rms_norm(hidden, hidden.shape[-1:], eps=eps).mul_(weight)
    out = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    size = _rows_per_block(hidden)
    for rows, target in zip(torch.split(hidden, size), torch.split(out, size), strict=True):
        torch.mul(rms_norm(rows, rows.shape[-1:], eps=eps), weight, out=target)
    return out


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
    return _rotate_by_turns(heads, *_turns(cos, sin))


def _turns(cos: torch.Tensor, sin: torch.Tensor) -> Turns:
    return torch.cat((cos, cos), dim=1)[:, None], torch.cat((-sin, sin), dim=1)[:, None]


def _rotate_by_turns(
    heads: torch.Tensor, own: torch.Tensor, exchanged: torch.Tensor
) -> torch.Tensor:
    if heads.numel() <= BLOCK_ELEMENTS or heads.is_cuda:
        return _rotated(heads, own, exchanged)
    out = torch.empty_like(heads, memory_format=torch.contiguous_format)
    size = _rows_per_block(heads)
    blocks = zip(
        *(torch.split(tensor, size) for tensor in (out, heads, own, exchanged)), strict=True
    )
    for target, *block in blocks:
        target.copy_(_rotated(*block))
    return out


def _rotated(heads: torch.Tensor, own: torch.Tensor, exchanged: torch.Tensor) -> torch.Tensor:
    """Rotate in a new tensor.

    Only what half precision was widened to may fuse product and sum: fp32 stays bit for bit what
    transformers computes.
    """
    half_dim = heads.shape[-1] // 2
    if heads.dtype == own.dtype:
        return (heads * own).add_(heads.roll(half_dim, -1).mul_(exchanged))
    wide = heads.to(own.dtype)
    halves_exchanged = wide.roll(half_dim, -1)
    return wide.mul_(own).addcmul_(halves_exchanged, exchanged).to(heads.dtype)


def _rows_per_block(tensor: torch.Tensor) -> int:
    """Return how many leading rows of a tensor stay in a core's cache."""
    return max(1, BLOCK_ELEMENTS // math.prod(tensor.shape[1:]))


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
