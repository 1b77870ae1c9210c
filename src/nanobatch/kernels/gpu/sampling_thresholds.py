"""Find what top-k, top-p and min-p leave of a row: a cutoff, and nothing is sorted.

The Triton counterpart of `kernels.sampling_filters`. Knows rows as records; what is kept is applied
by the draw, which drops scaled logits below the row's cutoff and, of those equal to it, ids above
`last_tie`. Rows without a filter leave both kernels at once.

The likely tokens are few, so one pass over the logits is nearly all that is done:

1. Groups of 32 ids are reduced to their maxima (and, for rows with top-p alone, tiles of the row to
   the sum of their probabilities).
2. One program a row gathers the groups with the largest maxima, at most `num_candidates` ids. All
   logits above the largest maximum that was left out are among these, so that a cutoff above it is
   exact: the least of the k largest logits, or of the nucleus, by `threshold_search`.
3. Where the cutoff lies lower (a nucleus of hundreds of tokens, a large k), the same program
   searches the whole row, about eight passes over what the second-level cache holds.

The draw then reads the groups' maxima and only those tiles that hold a kept token.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from nanobatch.kernels.gpu.cutoff_rules import is_top_p_alone, row_mass, solve_cutoff
from nanobatch.kernels.gpu.sampling_records import (
    IS_FILTERED,
    TEMPERATURE,
    is_wanted,
    load_float,
    record_of,
)
from nanobatch.kernels.gpu.threshold_search import COUNT, MINUS_INF_KEY, from_key, search, to_key

_IS_FILTERED = tl.constexpr(IS_FILTERED)
_INT_MAX = tl.constexpr(2**31 - 1)
_LOG2_E = tl.constexpr(1.4426950408889634)

_MAX_NUM_GROUPS = 8192
_NUM_PASS_IDS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdShape:
    """How the two kernels cut a row up; results do not depend on it.

    Attributes:
        group_size: Ids of which only the maximum is kept at first.
        num_candidates: Ids that are gathered from the groups with the largest maxima.
        row_tile: Ids at a time in a search of a whole row.
        num_pivots: Pivots at a time in a search of registers.
        num_row_pivots: Pivots at a time in a search of a whole row.
        num_warps: Warps of a row's program.
    """

    group_size: int = 32
    num_candidates: int = 4096
    row_tile: int = 1024
    num_pivots: int = 1
    num_row_pivots: int = 8
    num_warps: int = 8


DEFAULT_SHAPE: Final = ThresholdShape()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutoffs:
    """What each filtered row keeps; rows without a filter have no entry that means anything.

    Attributes:
        limits: [n, 2] int32: the bits of the least scaled logit kept, and the largest id kept among
            those equal to it.
        group_maxima: [n, num_groups] float32 largest logit of each group, +inf where a group holds
            NaN or +inf.
        group_size: Ids in a group.
    """

    limits: torch.Tensor
    group_maxima: torch.Tensor
    group_size: int


def find_cutoffs(
    logits: torch.Tensor,
    records: torch.Tensor,
    *,
    is_active: torch.Tensor | None,
    vocab_size: int,
    shape: ThresholdShape = DEFAULT_SHAPE,
) -> Cutoffs:
    """Find the cutoffs of all rows that filter: two launches, no wait.

    Args:
        logits: [n, >= vocab_size] float32, rows contiguous.
        records: [>= n, RECORD_WORDS] int32 `sampling_records.ROW_RECORD` of each row.
        is_active: [n] bool or int32, or None; inactive rows are skipped.
        vocab_size: Columns that are no padding.
        shape: How to cut rows up.
    """
    group_size = max(shape.group_size, triton.next_power_of_2(-(-vocab_size // _MAX_NUM_GROUPS)))
    num_groups = -(-vocab_size // group_size)
    num_rows, device = len(logits), logits.device
    num_tiles = triton.cdiv(vocab_size, _NUM_PASS_IDS)
    max_num_gathered = max(shape.num_candidates // group_size, 1)
    group_maxima = torch.empty(num_rows, num_groups, dtype=torch.float32, device=device)
    tile_masses = torch.empty(num_rows, num_tiles, 2, dtype=torch.float32, device=device)
    gathered = torch.empty(num_rows, max_num_gathered, dtype=torch.int32, device=device)
    limits = torch.empty(num_rows, 2, dtype=torch.int32, device=device)
    _group_maxima_kernel[(num_tiles, num_rows)](
        group_maxima,
        tile_masses,
        logits,
        logits.stride(0),
        records,
        is_active,
        vocab_size,
        num_groups,
        GROUP_SIZE=group_size,
        NUM_GROUPS=_NUM_PASS_IDS // group_size,
        num_warps=8,
    )
    _cutoff_kernel[(num_rows,)](
        limits,
        gathered,
        group_maxima,
        tile_masses,
        logits,
        logits.stride(0),
        records,
        is_active,
        vocab_size,
        num_groups,
        num_tiles,
        GROUP_SIZE=group_size,
        NUM_GROUPS=triton.next_power_of_2(num_groups),
        NUM_TILES=triton.next_power_of_2(num_tiles),
        MAX_NUM_GATHERED=max_num_gathered,
        ROW_TILE=shape.row_tile,
        NUM_PIVOTS=shape.num_pivots,
        NUM_ROW_PIVOTS=shape.num_row_pivots,
        num_warps=shape.num_warps,
    )
    return Cutoffs(limits=limits, group_maxima=group_maxima, group_size=group_size)


@triton.jit
def load_cutoff(limits_ptr, row):
    """Load a row's least scaled logit kept and the largest id kept among those equal to it."""
    cutoff = tl.load(limits_ptr + 2 * row).to(tl.float32, bitcast=True)
    return cutoff, tl.load(limits_ptr + 2 * row + 1)


@triton.jit
def _group_maxima_kernel(
    group_maxima_ptr,  # [num_rows, num_groups] float32
    tile_masses_ptr,  # [num_rows, num_tiles, 2] float32: largest logit, sum of exponentials
    logits_ptr,
    logits_stride,
    records_ptr,
    is_active_ptr,
    vocab_size,
    num_groups,
    GROUP_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
):
    tile, row = tl.program_id(0), tl.program_id(1)
    record = record_of(records_ptr, row)
    if is_wanted(record, is_active_ptr, row, _IS_FILTERED):
        groups = tile * NUM_GROUPS + tl.arange(0, NUM_GROUPS)
        ids = groups[:, None] * GROUP_SIZE + tl.arange(0, GROUP_SIZE)[None, :]
        row_logits = logits_ptr + row.to(tl.int64) * logits_stride
        logits = tl.load(row_logits + ids, mask=ids < vocab_size, other=-float("inf"))
        maxima = tl.max(tl.where(logits < float("inf"), logits, float("inf")), axis=1)
        tl.store(group_maxima_ptr + row * num_groups + groups, maxima, mask=groups < num_groups)
        if is_top_p_alone(record, vocab_size):
            largest = tl.max(maxima, axis=0)
            scale = _LOG2_E / load_float(record, TEMPERATURE)
            offset = tl.where(tl.abs(largest) < float("inf"), largest, 0.0)
            mass = tl.sum(tl.sum(tl.exp2((logits - offset) * scale), axis=1), axis=0)
            tile_mass = tile_masses_ptr + (row * tl.num_programs(0) + tile) * 2
            tl.store(tile_mass, largest)
            tl.store(tile_mass + 1, mass)


@triton.jit
def _cutoff_kernel(
    limits_ptr,  # [num_rows, 2] int32
    gathered_ptr,  # [num_rows, MAX_NUM_GATHERED] int32, scratch
    group_maxima_ptr,
    tile_masses_ptr,
    logits_ptr,
    logits_stride,
    records_ptr,
    is_active_ptr,
    vocab_size,
    num_groups,
    num_tiles,
    GROUP_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    NUM_TILES: tl.constexpr,
    MAX_NUM_GATHERED: tl.constexpr,
    ROW_TILE: tl.constexpr,
    NUM_PIVOTS: tl.constexpr,
    NUM_ROW_PIVOTS: tl.constexpr,
):
    row = tl.program_id(0)
    record = record_of(records_ptr, row)
    if is_wanted(record, is_active_ptr, row, _IS_FILTERED):
        groups = tl.arange(0, NUM_GROUPS)
        row_maxima = group_maxima_ptr + row * num_groups
        maxima = tl.load(row_maxima + groups, mask=groups < num_groups, other=-float("inf"))
        largest = tl.max(maxima, axis=0)
        cutoff = tl.full([], -float("inf"), tl.float32)
        last_tie = tl.full([], _INT_MAX, tl.int32)
        if (largest > -float("inf")) & (largest < float("inf")):  # else the draw ends the row
            row_logits = logits_ptr + row.to(tl.int64) * logits_stride
            logits, ids, complete_from = _gather_candidates(
                row_logits,
                gathered_ptr + row * MAX_NUM_GATHERED,
                maxima,
                groups,
                largest,
                vocab_size,
                num_groups,
                GROUP_SIZE,
                MAX_NUM_GATHERED,
                NUM_PIVOTS,
            )
            mass = row_mass(
                tile_masses_ptr + row * num_tiles * 2, record, vocab_size, num_tiles, NUM_TILES
            )
            cutoff, last_tie, is_exact = solve_cutoff(
                logits, ids, record, largest, complete_from, mass, vocab_size, 0, NUM_PIVOTS
            )
            if ~is_exact:
                start = MINUS_INF_KEY + 0 * complete_from
                cutoff, last_tie, is_exact = solve_cutoff(
                    row_logits, ids, record, largest, start, mass, vocab_size, ROW_TILE,
                    NUM_ROW_PIVOTS,
                )  # fmt: skip
        tl.store(limits_ptr + 2 * row, cutoff.to(tl.int32, bitcast=True))
        tl.store(limits_ptr + 2 * row + 1, last_tie)


@triton.jit
def _gather_candidates(
    row_logits,
    gathered,
    maxima,
    groups,
    largest,
    vocab_size,
    num_groups,
    GROUP_SIZE: tl.constexpr,
    MAX_NUM_GATHERED: tl.constexpr,
    NUM_PIVOTS: tl.constexpr,
):
    """Load the groups with the largest maxima.

    Returns:
        [MAX_NUM_GATHERED * GROUP_SIZE] logits, their ids, and the key from which on upward they are
        all the row has.
    """
    complete_from = to_key(largest) * 0 + MINUS_INF_KEY
    if num_groups > MAX_NUM_GATHERED:
        row = (largest, largest, largest, largest)  # counting needs none of them
        complete_from, num_reached = search(
            maxima,
            groups,
            row,
            complete_from,
            to_key(largest),
            MAX_NUM_GATHERED // 2 + 1,
            MAX_NUM_GATHERED,
            vocab_size,
            COUNT,
            0,
            NUM_PIVOTS,
        )
        if num_reached > MAX_NUM_GATHERED:
            complete_from += 1  # many equal maxima leave no pivot with the right number
    is_gathered = (maxima >= from_key(complete_from)) & (groups < num_groups)
    places = tl.cumsum(is_gathered.to(tl.int32), axis=0) - 1
    tl.store(gathered + places, groups, mask=is_gathered)
    tl.debug_barrier()  # what one thread stored, another loads
    places = tl.arange(0, MAX_NUM_GATHERED * GROUP_SIZE) // GROUP_SIZE
    is_filled = places < tl.sum(is_gathered.to(tl.int32), axis=0)
    ids = tl.load(gathered + places, mask=is_filled, other=0) * GROUP_SIZE
    ids += tl.arange(0, MAX_NUM_GATHERED * GROUP_SIZE) % GROUP_SIZE
    logits = tl.load(row_logits + ids, mask=is_filled & (ids < vocab_size), other=-float("inf"))
    return logits, ids, complete_from
