"""Products of few rows with a large weight, limited by how fast the weight is read.

Knows one product at a time; which products come here, and with which tiles, is `matmul_rules`.

The operands are swapped: out[rows, features]ᵀ = W xᵀ, so that the weight's features are the M of
Hopper's wgmma (never less than 64) and the few rows are its N (8 to 256). cuBLAS pads few rows to
64 or 128 instead. Where the output has too few tiles for the chip, the depth is split: every
program writes its partial sums, and the last to arrive at a tile adds them in the order of the
splits. So nothing depends on which program was last, there are no float atomics, and no second
kernel (Osama et al. 2023, "Stream-K", section 5, calls it a fixup; here it is in fixed order).
"""

import torch
import triton
import triton.language as tl

from nanobatch.kernels.gpu.dependent_launch import early_start, wait_for_inputs
from nanobatch.kernels.gpu.matmul_rules import Tiling


@triton.jit
def store_tile(total, out, bias, rows, features, num_rows, num_features, out_stride, HAS_BIAS):
    """Round one tile [features, rows] and write it to out [rows, features]."""
    if HAS_BIAS:
        safe_features = tl.minimum(features, num_features - 1)
        total += tl.load(bias + safe_features).to(tl.float32)[:, None]
    pointers = out + rows.to(tl.int64)[None, :] * out_stride + features[:, None]
    is_inside = (features < num_features)[:, None] & (rows < num_rows)[None, :]
    tl.store(pointers, total.to(out.dtype.element_ty), mask=is_inside)


@triton.jit
def arrive_with_partial(partial, tile_partials, arrival, split, is_row, NUM_SPLITS: tl.constexpr):
    """Publish a split's sums [features, rows] of a tile; return whether all splits have.

    Whoever is told so sees the sums of all others, and finds the counter at zero next time.
    """
    BLOCK_FEATURES: tl.constexpr = partial.shape[0]
    BLOCK_ROWS: tl.constexpr = partial.shape[1]
    features, rows = tl.arange(0, BLOCK_FEATURES), tl.arange(0, BLOCK_ROWS)
    offsets = rows[None, :] * BLOCK_FEATURES + features[:, None]
    start = split * (BLOCK_FEATURES * BLOCK_ROWS)
    tl.store(tile_partials + start + offsets, partial, mask=is_row[None, :])
    tl.debug_barrier()  # every thread has stored before one of them says so
    is_last = tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == NUM_SPLITS - 1
    if is_last:
        tl.store(arrival, 0)
    return is_last


@triton.jit
def add_partials(
    tile_partials,
    is_row,
    NUM_SPLITS: tl.constexpr,
    BLOCK_FEATURES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """Return the sums of all splits of a tile [features, rows], added in the order of splits."""
    TILE_SIZE: tl.constexpr = BLOCK_FEATURES * BLOCK_ROWS
    # Small tiles are all loaded at once; large ones would not fit into registers.
    UNROLL: tl.constexpr = NUM_SPLITS if TILE_SIZE <= 4096 else 1
    features, rows = tl.arange(0, BLOCK_FEATURES), tl.arange(0, BLOCK_ROWS)
    offsets = rows[None, :] * BLOCK_FEATURES + features[:, None]
    total = tl.zeros([BLOCK_FEATURES, BLOCK_ROWS], tl.float32)
    for split in tl.range(0, NUM_SPLITS, loop_unroll_factor=UNROLL):
        pointers = tile_partials + split * TILE_SIZE + offsets
        # Past L1, which may hold what was there before the others wrote.
        total += tl.load(pointers, mask=is_row[None, :], other=0.0, cache_modifier=".cg")
    return total


@triton.jit(do_not_specialize=["num_rows"])
def skinny_matmul_kernel(
    hidden,  # [num_rows, depth]
    weight,  # [num_features, depth], contiguous
    bias,  # [num_features]
    out,  # [num_rows, num_features]
    partials,  # fp32 [num_tiles, NUM_SPLITS, BLOCK_ROWS, BLOCK_FEATURES]
    arrivals,  # int32 [num_tiles], zero before and after
    num_rows,
    num_features,
    depth,
    hidden_stride,
    out_stride,
    HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_FEATURES: tl.constexpr,
    BLOCK_DEPTH: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    """Compute one split of one tile; grid (row tiles, splits, feature tiles).

    Row tiles of the same features run side by side, so that the weight comes from memory once.
    """
    row_tile = tl.program_id(0)
    split = tl.program_id(1)
    feature_tile = tl.program_id(2)
    rows = row_tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    features = feature_tile * BLOCK_FEATURES + tl.arange(0, BLOCK_FEATURES)
    columns = tl.arange(0, BLOCK_DEPTH)
    num_blocks = tl.cdiv(depth, BLOCK_DEPTH)
    start = split * num_blocks // NUM_SPLITS * BLOCK_DEPTH
    end = (split + 1) * num_blocks // NUM_SPLITS * BLOCK_DEPTH

    # Rows and features beyond the end repeat the last one: they are computed and not stored.
    weight_rows = weight + tl.minimum(features, num_features - 1).to(tl.int64) * depth
    hidden_rows = hidden + tl.minimum(rows, num_rows - 1).to(tl.int64) * hidden_stride
    weight_pointers = weight_rows[:, None] + columns[None, :]
    hidden_pointers = hidden_rows[None, :] + columns[:, None]
    total = tl.zeros([BLOCK_FEATURES, BLOCK_ROWS], tl.float32)
    wait_for_inputs(STARTS_EARLY)
    for block in tl.range(start, end, BLOCK_DEPTH):
        if IS_EVEN:
            weight_block = tl.load(weight_pointers + block)
            hidden_block = tl.load(hidden_pointers + block)
        else:
            is_column = block + columns < depth
            weight_block = tl.load(weight_pointers + block, mask=is_column[None, :], other=0.0)
            hidden_block = tl.load(hidden_pointers + block, mask=is_column[:, None], other=0.0)
        total = tl.dot(weight_block, hidden_block, total, input_precision=INPUT_PRECISION)

    if NUM_SPLITS == 1:
        store_tile(total, out, bias, rows, features, num_rows, num_features, out_stride, HAS_BIAS)
    else:
        tile = (feature_tile * tl.num_programs(0) + row_tile).to(tl.int64)
        tile_partials = partials + tile * (NUM_SPLITS * BLOCK_FEATURES * BLOCK_ROWS)
        is_row = rows < num_rows
        if arrive_with_partial(total, tile_partials, arrivals + tile, split, is_row, NUM_SPLITS):
            total = add_partials(tile_partials, is_row, NUM_SPLITS, BLOCK_FEATURES, BLOCK_ROWS)
            store_tile(
                total, out, bias, rows, features, num_rows, num_features, out_stride, HAS_BIAS
            )


def skinny_matmul(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    arrivals: torch.Tensor | None,
    tiling: Tiling,
) -> None:
    """Write hidden Wᵀ + bias to `out`, summed in fp32.

    Args:
        hidden: [num_rows, depth], at least one row, last dimension contiguous.
        weight: [num_features, depth] of the same dtype, contiguous.
        bias: [num_features], or None.
        out: [num_rows, num_features], last dimension contiguous, of the same dtype or fp32.
        arrivals: int32 [at least `tiling.num_tiles(num_rows, num_features)`], zero, and zero again
            afterwards; needed where the tiling splits. Launches that share it run one after
            another.
        tiling: Tiles, splits and pipeline.
    """
    num_rows, depth = hidden.shape
    num_features = len(weight)
    num_partials = tiling.num_partial_elements(num_rows, num_features)
    partials = hidden.new_empty(num_partials, dtype=torch.float32) if num_partials else out
    grid = (
        triton.cdiv(num_rows, tiling.block_rows),
        tiling.num_splits,
        triton.cdiv(num_features, tiling.block_features),
    )
    skinny_matmul_kernel[grid](
        hidden,
        weight,
        out if bias is None else bias,
        out,
        partials,
        out if arrivals is None else arrivals,
        num_rows,
        num_features,
        depth,
        hidden.stride(0),
        out.stride(0),
        HAS_BIAS=bias is not None,
        IS_EVEN=depth % tiling.block_depth == 0,
        INPUT_PRECISION="ieee",
        NUM_SPLITS=tiling.num_splits,
        BLOCK_ROWS=tiling.block_rows,
        BLOCK_FEATURES=tiling.block_features,
        BLOCK_DEPTH=tiling.block_depth,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        **early_start(hidden.device),
    )
