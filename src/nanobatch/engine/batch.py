"""One step's arrays: what a scheduled step looks like to a model runner, and what it returns.

Plain numpy, picklable to other ranks, no torch. `build_forward_batch` turns a `SchedulerOutput`
into a `ForwardBatch`; a `ModelRunner` turns that into `SampledTokens`.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nanobatch.engine.sequence import SlotAssignment

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
