"""The operations of a decoder layer for a GPU, each in one kernel.

Launches only: no kernel waits for the host, so a step of them can be captured in a CUDA graph.
"""

import torch

from nanobatch.kernels.gpu.matrix import GpuHead, GpuMatrix
from nanobatch.kernels.gpu.norm import add_rms_norm, rms_norm
from nanobatch.kernels.gpu.rotary_store import rotate_and_store
from nanobatch.kernels.gpu.silu_mul import silu_mul
from nanobatch.kernels.kernel_set import GatedMatrix, HeadNorms


class TritonKernels:
    """A `KernelSet` for bfloat16, float16 and fp32 on a GPU."""

    def pack_matrix(self, weight: torch.Tensor) -> GpuMatrix:
        """Take over a loaded weight [out_features, in_features]."""
        return GpuMatrix(weight)

    def pack_gated_matrix(self, weight: torch.Tensor) -> GatedMatrix:
        """Take over a loaded gate over what it gates, [2 * size, in_features]."""
        return GatedMatrix(self.pack_matrix(weight), self.silu_mul)

    def pack_head(self, weight: torch.Tensor) -> GpuHead:
        """Prepare the loaded rows of a vocabulary [vocab_size, hidden_size] for logits."""
        return GpuHead(weight)

    def rms_norm(self, hidden: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        """Normalise [num_tokens, size] in a new tensor."""
        return rms_norm(hidden, weight, eps=eps)

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised sum and the sum, which overwrites `residual`."""
        return add_rms_norm(hidden, residual, weight, eps=eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Map [num_tokens, 2 * size] to silu(first half) * second half."""
        return silu_mul(gate_up)

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
        """Normalise, rotate in place and store a step's heads; return views of `qkv`."""
        return rotate_and_store(
            qkv,
            rotation,
            norms=norms,
            num_heads=num_heads,
            slot_mapping=slot_mapping,
            key_cache=key_cache,
            value_cache=value_cache,
        )
