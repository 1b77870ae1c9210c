"""One step's arrays: what a scheduled step looks like to a model runner, and what it returns.

Plain numpy, picklable to other ranks, no torch. `build_forward_batch` turns a `SchedulerOutput`
into a `ForwardBatch`; a `ModelRunner` turns that into `SampledTokens`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nanobatch.engine.scheduler_output import SchedulerOutput
from nanobatch.engine.sequence import Sequence, SlotAssignment

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """The input of one forward pass. Sequences stand in the scheduler's order, never a set's.

    Attributes:
        input_ids: [num_tokens] token ids; a token the host does not know yet holds 0.
        last_token_indices: [num_from_slots] places in input_ids that the runner fills with the
            token last sampled into the slot `row_ids[last_token_rows]` (a decode step whose
            token is still on the device).
        last_token_rows: [num_from_slots] sequence (row of this batch) of each such place.
        positions: [num_tokens] position of each token in its sequence.
        slot_mapping: [num_tokens] where to store K and V: block_id * block_size + offset.
        query_start_loc: [num_seqs + 1] first token of each sequence in input_ids, and the end.
        seq_lens: [num_seqs] tokens of each sequence including this step's.
        block_tables: [num_seqs, max_blocks_per_seq] block ids, padded with 0.
        row_ids: [num_seqs] the stable slot that holds each sequence's sampling state.
        logits_indices: [num_logits] tokens whose logits are sampled.
        logits_rows: [num_logits] sequence (row of this batch) of each.
        slot_assignments: Slots that get a new sequence before this step runs.
        num_prefill_tokens: Tokens that are not the one new token of a decoding sequence.
    """

    input_ids: Int32Array
    last_token_indices: Int32Array
    last_token_rows: Int32Array
    positions: Int32Array
    slot_mapping: Int64Array
    query_start_loc: Int32Array
    seq_lens: Int32Array
    block_tables: Int32Array
    row_ids: Int32Array
    logits_indices: Int32Array
    logits_rows: Int32Array
    slot_assignments: tuple[SlotAssignment, ...]
    num_prefill_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return len(self.input_ids)

    @property
    def num_seqs(self) -> int:
        """Sequences in this step."""
        return len(self.row_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """What one step sampled, in the order of `ForwardBatch.logits_indices`.

    Attributes:
        token_ids: [num_logits] sampled tokens; meaningless where is_nan.
        is_nan: [num_logits] the row's logits held NaN or +inf.
        logprobs: [num_logits] log-probability of each token before temperature, or None.
    """

    token_ids: Int32Array
    is_nan: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32] | None = None


class PendingTokens(Protocol):
    """A launched step whose result may still be on its way."""

    def result(self) -> SampledTokens:
        """Wait for the step and return what it sampled."""
        ...


class ModelRunner(Protocol):
    """Runs forward passes. Steps take effect in the order in which they are launched."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens put through the model since the start (the prefill counter of engine.md)."""
        ...

    def launch(self, batch: ForwardBatch) -> PendingTokens:
        """Start a step. K and V of all its tokens are stored before any layer's attention reads."""
        ...

    def close(self) -> None:
        """Release the device. Safe to call twice."""
        ...


def build_forward_batch(output: SchedulerOutput) -> ForwardBatch:
    """Turn a step into arrays; to be called before the scheduler makes another step.

    Args:
        output: The step, not empty.
    """
    decoding, chunks = output.decoding, output.chunks
    seqs = [*decoding, *(chunk.sequence for chunk in chunks)]
    num_decoding, num_seqs = len(decoding), len(seqs)
    num_scheduled = np.ones(num_seqs, dtype=np.int32)
    num_scheduled[num_decoding:] = [chunk.num_tokens for chunk in chunks]
    seq_lens = _int32(seq.num_computed_tokens for seq in seqs)
    query_start_loc = np.zeros(num_seqs + 1, dtype=np.int32)
    np.cumsum(num_scheduled, out=query_start_loc[1:])
    token_rows = np.repeat(np.arange(num_seqs, dtype=np.int32), num_scheduled)  # [num_tokens]
    offsets = (seq_lens - query_start_loc[1:])[token_rows]
    positions = np.arange(len(token_rows), dtype=np.int32) + offsets
    block_tables = _join_block_tables(seqs)
    is_unread = np.array([seq.num_in_flight > 1 for seq in decoding], dtype=np.bool_)
    unread_rows = np.flatnonzero(is_unread).astype(np.int32)
    last_chunks = [row for row, chunk in enumerate(chunks, num_decoding) if chunk.is_last]
    logits_rows = np.concatenate([np.arange(num_decoding), last_chunks]).astype(np.int32)
    return ForwardBatch(
        input_ids=_input_ids(output),
        last_token_indices=unread_rows,
        last_token_rows=unread_rows,
        positions=positions,
        slot_mapping=_slot_mapping(
            block_tables, token_rows, positions, block_size=output.block_size
        ),
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_tables=block_tables,
        row_ids=_int32(seq.slot for seq in seqs if seq.slot is not None),
        logits_indices=query_start_loc[logits_rows + 1] - 1,
        logits_rows=logits_rows,
        slot_assignments=tuple(seq.slot_assignment() for seq in output.admitted),
        num_prefill_tokens=len(token_rows) - num_decoding,
    )


def _int32(values: Iterable[int]) -> Int32Array:
    return np.fromiter(values, dtype=np.int32)


def _input_ids(output: SchedulerOutput) -> Int32Array:
    # A decoding sequence has one sampled token in flight from this very step; with a second
    # one its newest token is still on the device.
    newest = [seq.output_token_ids[-1] if seq.num_in_flight == 1 else 0 for seq in output.decoding]
    pieces = [
        chunk.sequence.tokens(chunk.start, chunk.start + chunk.num_tokens)
        for chunk in output.chunks
    ]
    return np.concatenate([np.array(newest, dtype=np.int32), *pieces])


def _join_block_tables(seqs: list[Sequence]) -> Int32Array:
    """Return [num_seqs, max_blocks_per_seq], padded with 0."""
    num_blocks = _int32(len(seq.block_table) for seq in seqs)
    block_tables = np.zeros((len(seqs), int(num_blocks.max())), dtype=np.int32)
    is_block = np.arange(block_tables.shape[1]) < num_blocks[:, None]
    block_tables[is_block] = np.frombuffer(
        b"".join([seq.block_table for seq in seqs]), dtype=np.intc
    )
    return block_tables


def _slot_mapping(
    block_tables: Int32Array, rows: Int32Array, positions: Int32Array, *, block_size: int
) -> Int64Array:
    """Return [num_tokens]: where the pool stores the token at each row's position."""
    block_ids = block_tables[rows, positions // block_size].astype(np.int64)
    return block_ids * block_size + positions % block_size
