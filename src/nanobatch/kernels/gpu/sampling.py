"""Draw a token for each row in one pass over its logits: the largest score, with or without noise.

The Triton counterpart of `kernels.sampling_draw`: it draws exactly the tokens of `draw_dense`
(greedy rows: the lowest id of the largest logits). Knows rows as records (`sampling_records`) and
what each may draw as a cutoff (`sampling_thresholds`); edits of logits are over when it runs.

A row's vocabulary is split among programs of one warp, which walk over it in tiles. A program
carries the best scores it has seen, in float32 approximation, and looks closer at a tile only if

1. its largest logit and the largest noise there is could reach the best score: then it is hashed;
2. the largest logit and a bound of the noise of the smallest word of a group of four could: then
   every id gets its approximate score. About a tenth of a row's tiles get here.

A second kernel takes the best of a row's programs. Where the runner-up is so close that the error
of the approximation could have swapped the two (one row in ten thousand), it goes back to the
splits that matter and scores them in float64. So the result is exact by proof, and does not depend
on how the vocabulary was split.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from nanobatch.kernels.gpu.sampling_choice import choose_kernel, is_filtered, noise_key_of, two_best
from nanobatch.kernels.gpu.sampling_edits import TokenCounts
from nanobatch.kernels.gpu.sampling_records import (
    IS_FILTERED,
    IS_ROW,
    TEMPERATURE,
    is_wanted,
    load_float,
    record_of,
)
from nanobatch.kernels.gpu.sampling_thresholds import Cutoffs, load_cutoff
from nanobatch.kernels.gpu.sampling_tiles import (
    empty_ranking,
    keep_quads,
    load_quads,
    rank_greedy,
    rank_sampled,
)

_IS_ROW = tl.constexpr(IS_ROW)
_IS_FILTERED = tl.constexpr(IS_FILTERED)
_NUM_PARTIAL_WORDS = 4

_MAX_NUM_SPLITS = 128
_NUM_PROGRAMS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawShape:
    """How the draw cuts a row up; results do not depend on it.

    Attributes:
        tile: Ids that a program looks at together.
        num_splits: Programs a row.
        num_stages: Tiles whose loads are under way at once.
        num_warps: Warps a program.
    """

    tile: int
    num_splits: int
    num_stages: int = 3
    num_warps: int = 1


def default_draw_shape(num_rows: int, vocab_size: int) -> DrawShape:
    """Take enough programs to fill a large GPU, whatever the number of rows."""
    tile = 512
    num_splits = min(
        max(_NUM_PROGRAMS // max(num_rows, 1), 1), triton.cdiv(vocab_size, tile), _MAX_NUM_SPLITS
    )
    return DrawShape(tile=tile, num_splits=num_splits)


def draw(
    logits: torch.Tensor,
    records: torch.Tensor,
    *,
    positions: torch.Tensor,
    is_active: torch.Tensor | None,
    vocab_size: int,
    cutoffs: Cutoffs | None = None,
    counts: TokenCounts | None = None,
    shape: DrawShape | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token for each row: two launches, no wait.

    Args:
        logits: [n, >= vocab_size] float32, rows contiguous; not changed.
        records: [>= n, RECORD_WORDS] int32 `sampling_records.ROW_RECORD` of each row.
        positions: [n] int32 position of the token being sampled.
        is_active: [n] bool or int32, or None; inactive rows are skipped.
        vocab_size: Columns that are no padding.
        cutoffs: What filtered rows keep; None if no row filters.
        counts: Where rows with penalties count their token; None if there are none.
        shape: How to cut rows up; None takes what measured best.

    Returns:
        [n] int32 token ids, 0 for a row that is NaN, inactive or padding; [n] bool whether the
        row's logits held NaN or +inf or left no token to draw.
    """
    num_rows, device = len(logits), logits.device
    token_ids = torch.empty(num_rows, dtype=torch.int32, device=device)
    is_nan = torch.empty(num_rows, dtype=torch.bool, device=device)
    if num_rows == 0:
        return token_ids, is_nan
    shape = shape or default_draw_shape(num_rows, vocab_size)
    split_size = triton.cdiv(triton.cdiv(vocab_size, shape.tile), shape.num_splits) * shape.tile
    partials = torch.empty(
        num_rows, _NUM_PARTIAL_WORDS, shape.num_splits, dtype=torch.int32, device=device
    )
    limits, group_maxima, group_size, num_groups = None, None, 1, 0
    if cutoffs is not None:
        limits, group_maxima = cutoffs.limits, cutoffs.group_maxima
        group_size, num_groups = cutoffs.group_size, group_maxima.shape[1]
    _draw_kernel[(shape.num_splits, num_rows)](
        partials,
        logits,
        logits.stride(0),
        records,
        positions,
        is_active,
        limits,
        group_maxima,
        num_groups,
        vocab_size,
        split_size,
        TILE=shape.tile,
        GROUP_SIZE=group_size,
        NUM_STAGES=shape.num_stages,
        num_warps=shape.num_warps,
    )
    choose_kernel[(num_rows,)](
        token_ids,
        is_nan,
        partials,
        logits,
        logits.stride(0),
        records,
        positions,
        is_active,
        limits,
        None if counts is None else counts.is_seen,
        None if counts is None else counts.num_generated,
        vocab_size,
        split_size,
        shape.num_splits,
        TILE=shape.tile,
        NUM_SPLITS=_MAX_NUM_SPLITS,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return token_ids, is_nan


@triton.jit(do_not_specialize=["num_groups", "split_size"])
def _draw_kernel(
    partials_ptr,  # [num_rows, 4, num_splits] int32: best score, second score, best id, is bad
    logits_ptr,
    logits_stride,
    records_ptr,
    positions_ptr,
    is_active_ptr,
    limits_ptr,
    group_maxima_ptr,
    num_groups,
    vocab_size,
    split_size,  # ids, a multiple of TILE
    TILE: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    split, row = tl.program_id(0), tl.program_id(1)
    record = record_of(records_ptr, row)
    if is_wanted(record, is_active_ptr, row, _IS_ROW):
        row_logits = logits_ptr + row.to(tl.int64) * logits_stride
        temperature = load_float(record, TEMPERATURE)
        first = split * split_size
        end = tl.minimum(first + split_size, vocab_size)
        best, runner_up, best_ids, is_bad, floor = empty_ranking(TILE)
        if temperature == 0.0:
            for start in tl.range(first, end, TILE, num_stages=NUM_STAGES):
                quads = load_quads(row_logits, start, vocab_size, TILE)
                best, best_ids, is_bad, floor = rank_greedy(
                    quads, start, best, best_ids, is_bad, floor, TILE
                )
        else:
            noise_key = noise_key_of(record, positions_ptr, row)
            scale = 1.0 / temperature
            ranking = best, runner_up, best_ids, is_bad, floor
            if limits_ptr is None:  # decided by the compiler: no row of the batch has a cutoff
                ranking = _rank_all(
                    ranking, row_logits, first, end, noise_key, scale, vocab_size, TILE, NUM_STAGES
                )
            elif is_filtered(record):
                ranking = _rank_kept(
                    ranking, row_logits, first, end, noise_key, temperature, limits_ptr,
                    group_maxima_ptr, num_groups, row, vocab_size, TILE, GROUP_SIZE,
                )  # fmt: skip
            else:
                ranking = _rank_all(
                    ranking, row_logits, first, end, noise_key, scale, vocab_size, TILE, NUM_STAGES
                )
            best, runner_up, best_ids, is_bad, floor = ranking
        top, second, best_id = two_best(best, best_ids)
        num_splits = tl.num_programs(0)
        partial = partials_ptr + row * 4 * num_splits + split
        second = tl.maximum(second, tl.max(runner_up, axis=0))
        tl.store(partial, top.to(tl.int32, bitcast=True))
        tl.store(partial + num_splits, second.to(tl.int32, bitcast=True))
        tl.store(partial + 2 * num_splits, best_id)
        tl.store(partial + 3 * num_splits, tl.max(is_bad, axis=0))


@triton.jit
def _rank_all(
    ranking,
    row_logits,
    first,
    end,
    noise_key,
    scale,
    vocab_size,
    TILE: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Rank every id of a range."""
    best, runner_up, best_ids, is_bad, floor = ranking
    for start in tl.range(first, end, TILE, num_stages=NUM_STAGES):
        quads = load_quads(row_logits, start, vocab_size, TILE)
        best, runner_up, best_ids, is_bad, floor = rank_sampled(
            quads, start, noise_key, scale, best, runner_up, best_ids, is_bad, floor, TILE
        )
    return best, runner_up, best_ids, is_bad, floor


@triton.jit
def _rank_kept(
    ranking,
    row_logits,
    first,
    end,
    noise_key,
    temperature,
    limits_ptr,
    group_maxima_ptr,
    num_groups,
    row,
    vocab_size,
    TILE: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
):
    """Rank the ids of a range that a row keeps; tiles without one are not read."""
    best, runner_up, best_ids, is_bad, floor = ranking
    scale = 1.0 / temperature
    cutoff, last_tie = load_cutoff(limits_ptr, row)
    maxima = group_maxima_ptr + row * num_groups
    for start in range(first, end, TILE):
        groups = start // GROUP_SIZE + tl.arange(0, TILE // GROUP_SIZE)
        largest = tl.load(maxima + groups, groups < num_groups, -float("inf"))
        if tl.div_rn(tl.max(largest, axis=0), temperature) >= cutoff:
            quads = load_quads(row_logits, start, vocab_size, TILE)
            quads = keep_quads(quads, start, temperature, cutoff, last_tie, TILE)
            best, runner_up, best_ids, is_bad, floor = rank_sampled(
                quads, start, noise_key, scale, best, runner_up, best_ids, is_bad, floor, TILE
            )
    return best, runner_up, best_ids, is_bad, floor
