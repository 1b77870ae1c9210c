"""Weights on a GPU: each product goes to cuBLAS or to the skinny kernel, by a static table.

Owns the weight and what its kernels need between launches; `matmul_rules` knows which kernel is
fastest, `skinny_matmul` how ours works. Nothing is timed or decided by data while a run goes on.
"""

import torch
from torch.nn.functional import linear

from nanobatch.kernels.cpu_matrix import DenseHead
from nanobatch.kernels.gpu.matmul_rules import (
    Library,
    MatmulRules,
    Tiling,
    kernel_for,
    num_arrival_counters,
    rules_for,
)
from nanobatch.kernels.gpu.skinny_matmul import skinny_matmul

MEASURED_CAPABILITY = 9
"""Compute capability (major) of the device on which the rules were measured; cuBLAS elsewhere."""


class GpuMatrix:
    """A weight [out_features, in_features] and a measured choice of kernel (a `PackedMatrix`).

    Products of one matrix must follow one another on a stream: programs that share an output tile
    count their arrivals in memory that belongs to the matrix.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        """Take over a weight; its memory is not copied."""
        self.weight = weight
        self._rules = _device_rules(weight)
        self._arrivals = torch.zeros(
            num_arrival_counters(self._rules, len(weight)), dtype=torch.int32, device=weight.device
        )
        self._zeros = weight.new_zeros(len(weight))

    def product(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return hidden Wᵀ + bias.

        Args:
            hidden: [num_tokens, in_features] of the weight's dtype, contiguous.
            bias: [out_features], or None.

        Returns:
            [num_tokens, out_features], new.
        """
        kernel = kernel_for(self._rules, len(hidden))
        if kernel is Library.CUBLAS or not len(hidden):
            return linear(hidden, self.weight, bias)
        if not isinstance(kernel, Tiling):
            # torch asks cublasLt where a bias is added in the same kernel.
            return torch.addmm(self._zeros if bias is None else bias, hidden, self.weight.t())
        out = hidden.new_empty(len(hidden), len(self.weight))
        skinny_matmul(
            hidden, self.weight, bias=bias, out=out, arrivals=self._arrivals, tiling=kernel
        )
        return out


class GpuHead:
    """The rows of a vocabulary [vocab_size, hidden_size] (a `HeadMatrix`).

    Logits of half precision come in fp32, not rounded on the way.
    """

    num_packed_bytes = 0

    def __init__(self, weight: torch.Tensor) -> None:
        """Take over the rows; their memory is not copied."""
        self.weight = weight
        self._dense = DenseHead(weight)
        self._rules = _device_rules(weight)

    def logits(self, hidden: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Map [n, hidden_size], contiguous, to fp32 [n, vocab_size]."""
        kernel = kernel_for(self._rules, len(hidden))
        if not isinstance(kernel, Tiling) or kernel.num_splits > 1 or not len(hidden):
            return self._dense.logits(hidden, out=out)
        if out is None:
            out = hidden.new_empty(len(hidden), len(self.weight), dtype=torch.float32)
        skinny_matmul(hidden, self.weight, bias=None, out=out, arrivals=None, tiling=kernel)
        return out


def _device_rules(weight: torch.Tensor) -> MatmulRules:
    """Return the rules for a weight, none where they were not measured or the kernel cannot go."""
    if not weight.is_cuda or weight.dtype not in (torch.bfloat16, torch.float16):
        return ()
    if torch.cuda.get_device_capability(weight.device)[0] != MEASURED_CAPABILITY:
        return ()
    # Loads move 16 bytes at a time.
    if not weight.is_contiguous() or weight.shape[1] % 8:
        return ()
    return rules_for(*weight.shape)
