"""Cosines and sines of positions for rotary embedding (Su et al. 2021), scalings included.

The frequencies are rounded to fp32 like those the checkpoints were trained with, so that fp32
results equal transformers' bit for bit; the float64 of tests takes them unrounded. Cosines and
sines are never rounded to half precision. A GPU looks them up, one launch a step; where the table
would be large, and on a CPU, they are computed from the step's positions.
"""

import math

import torch
from torch import nn

from nanobatch.config import MIB, RopeConfig

MAX_TABLE_BYTES = 256 * MIB
"""Cosines and sines of a longer context are computed every step."""


class RotaryEmbedding(nn.Module):
    """Cosines and sines of a step's positions, once for all layers."""

    table: torch.Tensor | None
    """[max_positions, head_dim] cosines, then sines, on a GPU."""

    def __init__(
        self,
        rope: RopeConfig,
        head_dim: int,
        *,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Compute the frequencies of `head_dim` / 2 pairs of dimensions.

        Args:
            rope: Base and scaling.
            head_dim: Dimensions per head.
            max_positions: Every position is below this.
            dtype: Of the model; float64 gets float64 cosines and sines, all others fp32.
            device: Where positions will be.
        """
        super().__init__()
        exact_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        frequencies = inverse_frequencies(rope, head_dim, dtype=exact_dtype).to(device)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.attention_factor = attention_factor(rope)
        self.half_dim = len(frequencies)
        table: torch.Tensor | None = None
        num_table_bytes = 2 * max_positions * frequencies.nbytes
        if device.type == "cuda" and num_table_bytes <= MAX_TABLE_BYTES:
            table = torch.cat(self._compute(torch.arange(max_positions, device=device)), dim=1)
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin of positions [num_tokens], each [num_tokens, head_dim / 2].

        Their last dimension is contiguous.
        """
        if self.table is None:
            return self._compute(positions)
        rows = torch.index_select(self.table, 0, positions)  # [num_tokens, head_dim]
        return rows[:, : self.half_dim], rows[:, self.half_dim :]

    def _compute(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies = self.get_buffer("frequencies")
        angles = positions[:, None].to(frequencies.dtype) * frequencies
        return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor


def inverse_frequencies(rope: RopeConfig, head_dim: int, *, dtype: torch.dtype) -> torch.Tensor:
    """Return the radians per token of each pair of dimensions, [head_dim / 2].

    Sources: linear is Chen et al. 2023 (position interpolation), yarn is Peng et al. 2023,
    llama3 is the scheme that Llama 3.1 was released with.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=dtype) / head_dim
    periods = rope.theta**exponents
    if rope.rope_type == "linear":
        return (1.0 / periods) / rope.factor
    if rope.rope_type == "llama3":
        return _llama3_frequencies(1.0 / periods, rope)
    if rope.rope_type == "yarn":
        return _yarn_frequencies(periods, rope, head_dim)
    return 1.0 / periods


def attention_factor(rope: RopeConfig) -> float:
    """Return what cos and sin are multiplied with (Peng et al. 2023, section 3.4)."""
    if rope.rope_type != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_mscale(rope.factor, rope.mscale) / _yarn_mscale(
            rope.factor, rope.mscale_all_dim
        )
    return _yarn_mscale(rope.factor, 1.0)


def _llama3_frequencies(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Divide long wavelengths by the factor, keep short ones, blend those between."""
    context = _original_context(rope)
    wavelengths = 2 * math.pi / frequencies
    is_long = wavelengths > context / rope.low_freq_factor
    is_short = wavelengths < context / rope.high_freq_factor
    blend = (context / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    scaled = torch.where(is_long, frequencies / rope.factor, frequencies)
    return torch.where(~is_long & ~is_short, blended, scaled)


def _yarn_frequencies(periods: torch.Tensor, rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Blend from unscaled (many rotations in the context) to scaled (few) frequencies."""
    context = _original_context(rope)

    def dimension_of(num_rotations: float) -> float:
        return (head_dim * math.log(context / (num_rotations * 2 * math.pi))) / (
            2 * math.log(rope.theta)
        )

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # as in the paper's code: a step, not a division by zero
    dimensions = torch.arange(head_dim // 2, dtype=periods.dtype)
    keep = 1 - ((dimensions - low) / (high - low)).clamp(0, 1)
    return (1.0 / (rope.factor * periods)) * (1 - keep) + (1.0 / periods) * keep


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _original_context(rope: RopeConfig) -> int:
    assert rope.original_max_position_embeddings is not None, "the registry fills it in"
    return rope.original_max_position_embeddings
