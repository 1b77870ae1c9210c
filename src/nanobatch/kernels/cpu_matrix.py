"""Weights on a CPU: bfloat16 in the layout that the processor's matrix units read, if it has such.

oneDNN multiplies bfloat16 with AMX tiles or AVX-512 dot products, which want pairs of input
features side by side. Given a plain weight it reorders it in every call, which at 64 tokens takes
as long as the product; here that happens once. Other data types, and processors without these
units, keep the plain weight and torch's own choice of kernel. Knows nothing of layers.
"""

from functools import cache

import torch
from torch.nn.functional import linear

from nanobatch.kernels.kernel_set import HeadMatrix

WIDE_CHUNK = 1024
"""Head rows that are widened to fp32 at once: few enough to stay in the processor's cache."""

PACKED_CHUNK = 8192
"""Head rows whose two products are added up at once: the sums stay in the processor's cache."""


class DenseMatrix:
    """A weight [out_features, in_features] as it was loaded, on any device."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def product(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return hidden Wᵀ + bias: [num_tokens, in_features] to [num_tokens, out_features]."""
        return linear(hidden, self._weight, bias)


class PrepackedMatrix:
    """A bfloat16 weight [out_features, in_features] in oneDNN's layout; keeps no plain copy."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def product(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return hidden Wᵀ + bias: [num_tokens, in_features] to [num_tokens, out_features]."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            hidden, self._packed, bias, "none", [], ""
        )
        return product

    def silu_product(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return silu(hidden Wᵀ + bias), rounded once."""
        activated: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            hidden, self._packed, bias, "swish", [], ""
        )
        return activated

    def mul_product(
        self, factor: torch.Tensor, hidden: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Return factor * (hidden Wᵀ + bias), rounded once; factor is not changed."""
        scaled: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            hidden, factor, self._packed, bias, "mul"
        )
        return scaled

    def add_product(self, addend: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return addend + hidden Wᵀ, summed in fp32 and rounded once; addend is not changed."""
        total: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            hidden, addend, self._packed, None, "add"
        )
        return total


class PrepackedGatedMatrix:
    """A gate over what it gates, [2 * size, in_features], in oneDNN's layout.

    What follows a product is computed in it, from its fp32 sums: silu in that of the gate, the
    multiplication in the other. As operations of their own they take a fifth of the products' time.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        gate, up = weight.chunk(2)
        self._gate, self._up = PrepackedMatrix(gate), PrepackedMatrix(up)

    def product(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return silu(gate) * up: [num_tokens, in_features] to [num_tokens, size]."""
        gate_bias, up_bias = (None, None) if bias is None else bias.chunk(2)
        gate = self._gate.silu_product(hidden, gate_bias)
        return self._up.mul_product(gate, hidden, up_bias)


class DenseHead:
    """Logits from the weight as it was loaded.

    Half-precision rows are widened to fp32 a chunk at a time: a CPU's half-precision product comes
    back rounded, and an fp32 copy would triple the head.
    """

    num_packed_bytes = 0

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def logits(self, hidden: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Map [n, hidden_size] to [n, vocab_size] in fp32 (float64 in float64)."""
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        if out is None:
            out = hidden.new_empty(len(hidden), len(self._weight), dtype=dtype)
        if hidden.dtype == dtype:
            return torch.mm(hidden, self._weight.t(), out=out)
        if hidden.is_cuda:
            return torch.mm(hidden, self._weight.t(), out_dtype=dtype, out=out)
        wide = hidden.float()
        for start in range(0, len(self._weight), WIDE_CHUNK):
            rows = slice(start, start + WIDE_CHUNK)
            out[:, rows] = linear(wide, self._weight[rows].float())
        return out


class PrepackedHead:
    """Logits from bfloat16 rows in oneDNN's layout.

    Its products come back rounded to bfloat16, and rounded logits tie. So a second product is
    started from the first, rounded one with the opposite sign: it returns what rounding took away,
    to 8 bits of its own. Their difference is the fp32 sum with a relative error of 2⁻¹⁸, a
    five-hundredth of bfloat16's, at less than half the cost of an fp32 product.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.num_packed_bytes = weight.nbytes
        self._vocab_size = len(weight)
        self._chunks = [PrepackedMatrix(rows) for rows in torch.split(weight, PACKED_CHUNK)]

    def rounded_logits(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Map [n, hidden_size] to the [n, k] bfloat16 logits of one chunk of rows after another."""
        return [chunk.product(hidden, None) for chunk in self._chunks]

    def logits(self, hidden: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Map [n, hidden_size] to [n, vocab_size] in fp32."""
        if out is None:
            out = hidden.new_empty(len(hidden), self._vocab_size, dtype=torch.float32)
        negated = hidden.neg()
        for chunk, part in zip(self._chunks, torch.split(out, PACKED_CHUNK, dim=1), strict=True):
            rounded = chunk.product(hidden, None)
            error = chunk.add_product(rounded, negated)  # what rounding added
            torch.sub(rounded.float(), error.float(), out=part)
        return out


def pack_matrix(weight: torch.Tensor) -> DenseMatrix | PrepackedMatrix:
    """Take over a loaded weight [out_features, in_features]; drop other references to free it."""
    return PrepackedMatrix(weight) if can_prepack(weight) else DenseMatrix(weight)


def pack_head(weight: torch.Tensor) -> HeadMatrix:
    """Prepare the loaded rows of a vocabulary [vocab_size, hidden_size] for logits on a CPU."""
    return PrepackedHead(weight) if can_prepack(weight) else DenseHead(weight)


@cache
def has_bfloat16_units() -> bool:
    """Whether the processor multiplies bfloat16 natively and torch knows how to."""
    has_units = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch._C._has_mkldnn and has_units


def can_prepack(weight: torch.Tensor) -> bool:
    """Whether oneDNN's layout pays for a weight."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and has_bfloat16_units()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )
