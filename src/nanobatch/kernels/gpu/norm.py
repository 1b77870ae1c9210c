"""RMSNorm in one kernel, alone or with the addition to the residual stream before it.

One program a row, which stays in registers between the sum of squares and the result: what must
be read is read once. Arithmetic is fp32; the rounding steps are those of `torch_kernels`.
"""

import torch
import triton
import triton.language as tl

from nanobatch.kernels.gpu.dependent_launch import early_start, wait_for_inputs

ELEMENTS_PER_THREAD = 8
"""One load of 16 bytes in half precision. On an H200 16 and 32 elements are as fast or up to 4 %
faster for rows of 1,024, and as fast or 4 % slower at 256 rows of 4,096."""

MAX_WARPS = 16


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) * weight.

    Args:
        hidden: [num_tokens, size], contiguous.
        weight: [size].
        eps: Inside the square root.

    Returns:
        [num_tokens, size], a new tensor.
    """
    assert hidden.is_contiguous(), "rows follow one another"
    out = torch.empty_like(hidden)
    if len(hidden):
        _rms_norm_kernel[(len(hidden),)](hidden, weight, out, eps, **_row_launch(hidden))
    return out


def add_rms_norm(
    hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a block's output to the residual stream and normalise the sum.

    Args:
        hidden: [num_tokens, size], contiguous.
        residual: [num_tokens, size], contiguous; overwritten with the sum.
        weight: [size].
        eps: Inside the square root.

    Returns:
        The normalised sum, a new tensor, and the sum, which is `residual`.
    """
    assert hidden.is_contiguous(), "rows follow one another"
    assert residual.is_contiguous(), "rows follow one another"
    out = torch.empty_like(hidden)
    if len(hidden):
        _add_rms_norm_kernel[(len(hidden),)](
            hidden, residual, weight, out, eps, **_row_launch(hidden)
        )
    return out, residual


def _row_launch(hidden: torch.Tensor) -> dict[str, int | bool]:
    """Return the keyword arguments that launch a program a row of [num_tokens, size]."""
    size = hidden.shape[1]
    width = triton.next_power_of_2(size)
    num_warps = min(max(width // (32 * ELEMENTS_PER_THREAD), 1), MAX_WARPS)
    return {"SIZE": size, "WIDTH": width, "num_warps": num_warps, **early_start(hidden.device)}


@triton.jit
def normalised(x, weight, eps, SIZE: tl.constexpr, dtype: tl.constexpr):
    """Return the row x [WIDTH] fp32, zero past SIZE, normalised and weighted, in `dtype`."""
    mean_square = tl.sum(x * x, axis=0) / SIZE
    unweighted = (x * tl.rsqrt(mean_square + eps)).to(dtype)
    return (unweighted.to(tl.float32) * weight.to(tl.float32)).to(dtype)


@triton.jit
def _rms_norm_kernel(
    hidden, weight, out, eps, SIZE: tl.constexpr, WIDTH: tl.constexpr, STARTS_EARLY: tl.constexpr
):
    columns = tl.arange(0, WIDTH)
    is_column = columns < SIZE
    first = tl.program_id(0).to(tl.int64) * SIZE
    factor = tl.load(weight + columns, mask=is_column, other=0.0)
    wait_for_inputs(STARTS_EARLY)
    x = tl.load(hidden + first + columns, mask=is_column, other=0.0).to(tl.float32)
    result = normalised(x, factor, eps, SIZE=SIZE, dtype=out.dtype.element_ty)
    tl.store(out + first + columns, result, mask=is_column)


@triton.jit
def _add_rms_norm_kernel(
    hidden,
    residual,
    weight,
    out,
    eps,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    columns = tl.arange(0, WIDTH)
    is_column = columns < SIZE
    first = tl.program_id(0).to(tl.int64) * SIZE
    factor = tl.load(weight + columns, mask=is_column, other=0.0)
    wait_for_inputs(STARTS_EARLY)
    x = tl.load(hidden + first + columns, mask=is_column, other=0.0).to(tl.float32)
    stream = tl.load(residual + first + columns, mask=is_column, other=0.0).to(tl.float32)
    total = (x + stream).to(residual.dtype.element_ty)
    tl.store(residual + first + columns, total, mask=is_column)
    result = normalised(total.to(tl.float32), factor, eps, SIZE=SIZE, dtype=out.dtype.element_ty)
    tl.store(out + first + columns, result, mask=is_column)
