"""Change logits before they are drawn from: biases, bans, and penalties for tokens seen.

The Triton counterpart of `kernels.sampling_penalties` and of the sampler's bias and bans. Knows
rows as records and edits of single tokens; token counts live by slot on the device. Everything is
changed in place. A logit that is NaN or +inf stays one, for the draw to see, also where a ban would
hide it.

These kernels are launched with `enable_fp_fusion=False`: a penalty rounds as the reference does.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from nanobatch.kernels.gpu.sampling_records import (
    FREQUENCY_PENALTY,
    IS_PENALIZED,
    PRESENCE_PENALTY,
    REPETITION_PENALTY,
    SLOT,
    is_wanted,
    load_float,
    load_int,
    record_of,
)
from nanobatch.kernels.host_copy import copy_to_device

IntArray = npt.NDArray[np.integer[Any]]

TOKEN_EDIT: Final = np.dtype(
    [
        ("row", np.int32),
        ("token_id", np.int32),
        ("bias", np.float32),  # added to the logit
        ("banned_before", np.int32),  # position before which the token cannot be drawn
    ]
)
"""What happens to one token of one row; a row has at most one of them for a token."""

EDIT_WORDS: Final = TOKEN_EDIT.itemsize // 4
"""Words of 32 bits in an edit."""

_TOKEN_ID = tl.constexpr(1)
_BIAS = tl.constexpr(2)
_BANNED_BEFORE = tl.constexpr(3)
_EDIT_WORDS = tl.constexpr(EDIT_WORDS)
_IS_PENALIZED = tl.constexpr(IS_PENALIZED)

_EDITS_PER_PROGRAM = 128
_IDS_PER_PROGRAM = 2048


class TokenCounts:
    """Which tokens each slot's sequence has seen, and how often it generated each.

    Takes BYTES_PER_TOKEN * num_slots * vocab_size on the device. The draw counts a row's token
    itself.

    Attributes:
        is_seen: [num_slots, vocab_size] uint8, 1 for tokens of the prompt and the output.
        num_generated: [num_slots, vocab_size] int32.
    """

    BYTES_PER_TOKEN: Final = 5

    def __init__(self, num_slots: int, *, vocab_size: int, device: torch.device) -> None:
        self.is_seen = torch.zeros(num_slots, vocab_size, dtype=torch.uint8, device=device)
        self.num_generated = torch.zeros(num_slots, vocab_size, dtype=torch.int32, device=device)

    def assign(self, slot: int, *, prompt_token_ids: IntArray, output_token_ids: IntArray) -> None:
        """Count a sequence's tokens from scratch, those of a returning one's output too.

        Queues copies and launches, does not wait.
        """
        is_seen, num_generated = self.is_seen[slot], self.num_generated[slot]
        is_seen.zero_()
        num_generated.zero_()
        seen = np.union1d(prompt_token_ids, output_token_ids)
        generated, counts = np.unique(output_token_ids, return_counts=True)
        device = is_seen.device
        is_seen.index_fill_(0, copy_to_device(seen.astype(np.int64), device), 1)
        num_generated.index_copy_(
            0,
            copy_to_device(generated.astype(np.int64), device),
            copy_to_device(counts.astype(np.int32), device),
        )


def edit_tokens(
    logits: torch.Tensor, edits: torch.Tensor, *, positions: torch.Tensor, vocab_size: int
) -> None:
    """Bias and ban single tokens, in place.

    Args:
        logits: [n, >= vocab_size] float32, rows contiguous.
        edits: [num_edits, EDIT_WORDS] int32 records `TOKEN_EDIT`, at least one.
        positions: [n] int32 position of the token being sampled.
        vocab_size: Tokens beyond it are passed over.
    """
    _edit_tokens_kernel[(triton.cdiv(len(edits), _EDITS_PER_PROGRAM),)](
        logits,
        logits.stride(0),
        edits,
        len(edits),
        positions,
        vocab_size,
        EDITS_PER_PROGRAM=_EDITS_PER_PROGRAM,
        num_warps=1,
        enable_fp_fusion=False,
    )


def penalize(
    logits: torch.Tensor,
    records: torch.Tensor,
    counts: TokenCounts,
    *,
    is_active: torch.Tensor | None,
) -> None:
    """Apply the penalties of the rows that have any, in place.

    Repetition (CTRL, Keskar et al. 2019, section 4.1) divides positive logits of seen tokens and
    multiplies negative ones; presence is subtracted once from generated tokens, frequency for each
    time.

    Args:
        logits: [n, >= vocab_size] float32, rows contiguous.
        records: [>= n, RECORD_WORDS] int32 `sampling_records.ROW_RECORD` of each row.
        counts: Tokens of each slot.
        is_active: [n] bool or int32, or None; inactive rows are skipped.
    """
    vocab_size = counts.is_seen.shape[1]
    _penalize_kernel[(triton.cdiv(vocab_size, _IDS_PER_PROGRAM), len(logits))](
        logits,
        logits.stride(0),
        records,
        is_active,
        counts.is_seen,
        counts.num_generated,
        vocab_size,
        IDS_PER_PROGRAM=_IDS_PER_PROGRAM,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit
def count_token(record, is_seen_ptr, num_generated_ptr, vocab_size, token_id):
    """Count a drawn token for its slot, if the row has penalties."""
    if (load_int(record, 0) & _IS_PENALIZED) != 0:
        place = load_int(record, SLOT).to(tl.int64) * vocab_size + token_id
        tl.store(is_seen_ptr + place, 1)
        tl.store(num_generated_ptr + place, tl.load(num_generated_ptr + place) + 1)


@triton.jit
def _edit_tokens_kernel(
    logits_ptr,
    logits_stride,
    edits_ptr,
    num_edits,
    positions_ptr,
    vocab_size,
    EDITS_PER_PROGRAM: tl.constexpr,
):
    edits = tl.program_id(0) * EDITS_PER_PROGRAM + tl.arange(0, EDITS_PER_PROGRAM)
    is_edit = edits < num_edits
    edit_ptrs = edits_ptr + edits * _EDIT_WORDS
    rows = tl.load(edit_ptrs, mask=is_edit, other=0)
    token_ids = tl.load(edit_ptrs + _TOKEN_ID, mask=is_edit, other=0)
    bias = tl.load(edit_ptrs + _BIAS, mask=is_edit, other=0).to(tl.float32, bitcast=True)
    banned_before = tl.load(edit_ptrs + _BANNED_BEFORE, mask=is_edit, other=0)
    is_edit = is_edit & (token_ids < vocab_size)
    places = logits_ptr + rows.to(tl.int64) * logits_stride + token_ids
    logits = tl.load(places, mask=is_edit, other=0.0)
    is_banned = tl.load(positions_ptr + rows, mask=is_edit, other=0) < banned_before
    is_number = logits < float("inf")
    edited = tl.where(is_banned & is_number, -float("inf"), logits + bias)
    tl.store(places, edited, mask=is_edit)


@triton.jit
def _penalize_kernel(
    logits_ptr,
    logits_stride,
    records_ptr,
    is_active_ptr,
    is_seen_ptr,  # [num_slots, vocab_size] uint8
    num_generated_ptr,  # [num_slots, vocab_size] int32
    vocab_size,
    IDS_PER_PROGRAM: tl.constexpr,
):
    row = tl.program_id(1)
    record = record_of(records_ptr, row)
    if is_wanted(record, is_active_ptr, row, _IS_PENALIZED):
        ids = tl.program_id(0) * IDS_PER_PROGRAM + tl.arange(0, IDS_PER_PROGRAM)
        is_id = ids < vocab_size
        slot_ids = load_int(record, SLOT).to(tl.int64) * vocab_size + ids
        is_seen = tl.load(is_seen_ptr + slot_ids, mask=is_id, other=0) != 0
        if tl.max(is_seen.to(tl.int32), axis=0) > 0:
            places = logits_ptr + row.to(tl.int64) * logits_stride + ids
            logits = tl.load(places, mask=is_id & is_seen, other=0.0)
            num_generated = tl.load(num_generated_ptr + slot_ids, mask=is_id & is_seen, other=0)
            repetition = load_float(record, REPETITION_PENALTY)
            logits = tl.where(logits > 0.0, tl.div_rn(logits, repetition), logits * repetition)
            presence = tl.where(num_generated > 0, load_float(record, PRESENCE_PENALTY), 0.0)
            frequency = load_float(record, FREQUENCY_PENALTY) * num_generated.to(tl.float32)
            tl.store(places, logits - (presence + frequency), mask=is_id & is_seen)
