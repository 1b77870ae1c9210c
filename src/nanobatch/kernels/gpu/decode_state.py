"""What a decode step reads and leaves behind on the device, so that the next one needs no host.

`begin_step` turns positions, slots and block tables into the model's inputs; `end_step` puts the
sampled tokens where the next step finds them and ends the rows that have stopped. Knows slots
and positions; not the model, the sampler, or why a sequence stops beyond its stop tokens.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

NUM_STOP_TOKENS = 4
"""Stop tokens of a row that the device knows; the host knows all and drops what came after."""

ROWS_PER_PROGRAM = 128

NO_TOKEN = -1
"""Stands in the results for a token that does not exist: the row's logits held NaN or +inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """What outlives a chunk of steps, by slot. The last slot belongs to padding rows.

    Attributes:
        last_tokens: [num_slots + 1] int32, token last sampled.
        is_done: [num_slots + 1] int32, 1 once the sequence in the slot has stopped.
    """

    last_tokens: torch.Tensor
    is_done: torch.Tensor

    @classmethod
    def allocate(cls, num_slots: int, *, device: torch.device) -> "SlotState":
        """Make the state of slots that hold no sequence."""
        return cls(
            last_tokens=torch.zeros(num_slots + 1, dtype=torch.int32, device=device),
            is_done=torch.ones(num_slots + 1, dtype=torch.int32, device=device),
        )

    @property
    def padding_slot(self) -> int:
        """The slot that no sequence ever has."""
        return len(self.last_tokens) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProgress:
    """How far a batch's rows are, in batch order; positions and steps move with every step.

    Attributes:
        row_ids: [n] int32 slot of each row; the padding slot past the real rows.
        positions: [n] int32 position of the next token to compute.
        steps_left: [n] int32 steps that the row still takes part in.
        stop_token_ids: [n, NUM_STOP_TOKENS] int32, padded with -1.
    """

    row_ids: torch.Tensor
    positions: torch.Tensor
    steps_left: torch.Tensor
    stop_token_ids: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """One step's inputs of model and sampler, one token a row.

    Attributes:
        input_ids: [n] int32.
        positions: [n] int32, 0 for inactive rows.
        next_positions: [n] int32, positions of the tokens being sampled.
        seq_lens: [n] int32 tokens including this step's; 0 for inactive rows.
        slot_mapping: [n] int64 place of the token in the KV pool; -1 for inactive rows.
        is_active: [n] int32, 1 for rows that compute a token.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    next_positions: torch.Tensor
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor
    is_active: torch.Tensor

    @classmethod
    def allocate(cls, num_rows: int, *, device: torch.device) -> "StepInputs":
        """Make room for steps of up to `num_rows` rows."""

        def zeros(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(num_rows, dtype=dtype, device=device)

        return cls(
            input_ids=zeros(torch.int32),
            positions=zeros(torch.int32),
            next_positions=zeros(torch.int32),
            seq_lens=zeros(torch.int32),
            slot_mapping=zeros(torch.int64),
            is_active=zeros(torch.int32),
        )

    def first(self, num_rows: int) -> "StepInputs":
        """Return views of the first rows."""
        return StepInputs(
            input_ids=self.input_ids[:num_rows],
            positions=self.positions[:num_rows],
            next_positions=self.next_positions[:num_rows],
            seq_lens=self.seq_lens[:num_rows],
            slot_mapping=self.slot_mapping[:num_rows],
            is_active=self.is_active[:num_rows],
        )


def begin_step(
    rows: RowProgress,
    state: SlotState,
    *,
    block_ids: torch.Tensor,
    block_starts: torch.Tensor,
    inputs: StepInputs,
    block_size: int,
) -> None:
    """Write the inputs of the next step.

    Args:
        rows: The chunk's rows; as many are read as `inputs` has.
        state: Last tokens and stopped slots.
        block_ids: [total] int32, block tables one after the other.
        block_starts: [n] int32 where each row's table begins.
        inputs: Written.
        block_size: Tokens per KV block.
    """
    num_rows = len(inputs.input_ids)
    _begin_step_kernel[(triton.cdiv(num_rows, ROWS_PER_PROGRAM),)](
        rows.row_ids,
        rows.positions,
        rows.steps_left,
        block_ids,
        block_starts,
        state.last_tokens,
        state.is_done,
        inputs.input_ids,
        inputs.positions,
        inputs.next_positions,
        inputs.seq_lens,
        inputs.slot_mapping,
        inputs.is_active,
        num_rows,
        BLOCK_SIZE=block_size,
        NUM_LANES=ROWS_PER_PROGRAM,
    )


def end_step(
    token_ids: torch.Tensor,
    is_nan: torch.Tensor,
    *,
    is_active: torch.Tensor,
    rows: RowProgress,
    state: SlotState,
    results: torch.Tensor,
) -> None:
    """Take what a step sampled and move the rows on.

    Args:
        token_ids: [n] int32.
        is_nan: [n] bool, where there is no token.
        is_active: [n] int32, rows that took part.
        rows: `positions` and `steps_left` are moved.
        state: `last_tokens` and `is_done` are written for active rows.
        results: [n] int32, written: the token, or NO_TOKEN.
    """
    num_rows = len(token_ids)
    _end_step_kernel[(triton.cdiv(num_rows, ROWS_PER_PROGRAM),)](
        token_ids,
        is_nan,
        rows.row_ids,
        rows.positions,
        rows.steps_left,
        rows.stop_token_ids,
        is_active,
        state.last_tokens,
        state.is_done,
        results,
        num_rows,
        NUM_STOP_TOKENS=NUM_STOP_TOKENS,
        NUM_LANES=ROWS_PER_PROGRAM,
    )


@triton.jit(do_not_specialize=["num_rows"])
def _begin_step_kernel(
    row_ids,
    positions,
    steps_left,
    block_ids,
    block_starts,
    last_tokens,
    is_done,
    input_ids,
    model_positions,
    next_positions,
    seq_lens,
    slot_mapping,
    is_active,
    num_rows,
    BLOCK_SIZE: tl.constexpr,
    NUM_LANES: tl.constexpr,
):
    row = tl.program_id(0) * NUM_LANES + tl.arange(0, NUM_LANES)
    is_row = row < num_rows
    slot = tl.load(row_ids + row, mask=is_row, other=0)
    left = tl.load(steps_left + row, mask=is_row, other=0)
    done = tl.load(is_done + slot, mask=is_row, other=1)
    active = is_row & (left > 0) & (done == 0)
    position = tl.load(positions + row, mask=active, other=0)
    table = tl.load(block_starts + row, mask=active, other=0)
    block = tl.load(block_ids + table + position // BLOCK_SIZE, mask=active, other=0).to(tl.int64)
    place = block * BLOCK_SIZE + position % BLOCK_SIZE
    token = tl.load(last_tokens + slot, mask=active, other=0)
    tl.store(input_ids + row, token, mask=is_row)
    tl.store(model_positions + row, position, mask=is_row)
    tl.store(next_positions + row, position + 1, mask=is_row)
    tl.store(seq_lens + row, tl.where(active, position + 1, 0), mask=is_row)
    tl.store(slot_mapping + row, tl.where(active, place, -1), mask=is_row)
    tl.store(is_active + row, active.to(tl.int32), mask=is_row)


@triton.jit(do_not_specialize=["num_rows"])
def _end_step_kernel(
    token_ids,
    is_nan,
    row_ids,
    positions,
    steps_left,
    stop_token_ids,
    is_active,
    last_tokens,
    is_done,
    results,
    num_rows,
    NUM_STOP_TOKENS: tl.constexpr,
    NUM_LANES: tl.constexpr,
):
    row = tl.program_id(0) * NUM_LANES + tl.arange(0, NUM_LANES)
    is_row = row < num_rows
    active = is_row & (tl.load(is_active + row, mask=is_row, other=0) != 0)
    slot = tl.load(row_ids + row, mask=active, other=0)
    token = tl.load(token_ids + row, mask=active, other=0)
    no_token = tl.load(is_nan + row, mask=active, other=0).to(tl.int1)
    ends = no_token
    for index in tl.static_range(NUM_STOP_TOKENS):
        stop = tl.load(stop_token_ids + row * NUM_STOP_TOKENS + index, mask=active, other=-1)
        ends = ends | (stop == token)
    tl.store(results + row, tl.where(no_token, -1, token), mask=is_row)
    tl.store(last_tokens + slot, token, mask=active)
    tl.store(is_done + slot, 1, mask=active & ends)
    position = tl.load(positions + row, mask=active, other=0)
    left = tl.load(steps_left + row, mask=active, other=0)
    tl.store(positions + row, position + 1, mask=active)
    tl.store(steps_left + row, left - 1, mask=active)
