"""What a step looks like to a model runner, and what it returns: plain numpy, no torch.

There are two kinds of step. A `PrefillBatch` computes chunks of prompts; a `DecodeBatch` computes
several tokens one after the other for sequences whose newest token is known to the device only.
Both are picklable to other ranks.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nanobatch.engine.sequence import SlotAssignment

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTables:
    """The KV blocks of a step's sequences, one table after the other.

    Attributes:
        block_ids: [sum of table lengths] block ids.
        starts: [num_seqs + 1] where each sequence's table begins in `block_ids`, and the end.
    """

    block_ids: Int32Array
    starts: Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBatch:
    """Chunks of prompts (of preempted sequences: of all known tokens), one a sequence.

    Attributes:
        input_ids: [num_tokens] token ids.
        positions: [num_tokens] position of each token in its sequence.
        slot_mapping: [num_tokens] where to store K and V: block_id * block_size + offset.
        query_start_loc: [num_seqs + 1] first token of each sequence in input_ids, and the end.
        seq_lens: [num_seqs] tokens of each sequence up to the end of its chunk.
        block_tables: KV blocks of each sequence.
        row_ids: [num_seqs] the stable slot that holds each sequence's sampling state.
        logits_indices: [num_logits] tokens whose logits are sampled.
        logits_rows: [num_logits] sequence (row of this batch) of each.
        slot_assignments: Slots that get a new sequence before this step runs.
        slot_copies: [2, num_copies] source and destination of keys and values that are copied in
            every layer between storing and attention. No source is a destination.
    """

    input_ids: Int32Array
    positions: Int32Array
    slot_mapping: Int64Array
    query_start_loc: Int32Array
    seq_lens: Int32Array
    block_tables: BlockTables
    row_ids: Int32Array
    logits_indices: Int32Array
    logits_rows: Int32Array
    slot_assignments: tuple[SlotAssignment, ...]
    slot_copies: Int64Array

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return len(self.input_ids)

    @property
    def num_seqs(self) -> int:
        """Sequences that compute a chunk."""
        return len(self.row_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBatch:
    """Up to `num_steps` new tokens of each sequence, computed one after the other.

    The first token that is computed is the one last sampled into the sequence's slot.

    Attributes:
        row_ids: [num_seqs] the stable slot of each sequence.
        positions: [num_seqs] position of the first token to compute.
        num_steps_of_rows: [num_seqs] tokens to compute of each sequence, 1 to num_steps.
        num_steps: Steps in a row.
        block_tables: KV blocks of each sequence, enough for all its steps.
        num_shared_blocks: [num_seqs] how many leading blocks each row has in common with the row
            before it; 0 for the first. Rows are in such an order that those which share blocks
            are neighbours.
    """

    row_ids: Int32Array
    positions: Int32Array
    num_steps_of_rows: Int32Array
    num_steps: int
    block_tables: BlockTables
    num_shared_blocks: Int32Array

    @property
    def num_tokens(self) -> int:
        """Tokens computed if no sequence ends before its last step."""
        return int(self.num_steps_of_rows.sum())

    @property
    def num_seqs(self) -> int:
        """Sequences that decode."""
        return len(self.row_ids)


StepBatch = PrefillBatch | DecodeBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """What one batch sampled.

    Row k holds step k; a `PrefillBatch` has one row, in the order of its `logits_indices`, a
    `DecodeBatch` has `num_steps`, in the order of its sequences. Entries past a sequence's own
    number of steps, and those after a NaN, mean nothing.

    Attributes:
        token_ids: [num_steps, num_rows] sampled tokens; meaningless where is_nan.
        is_nan: [num_steps, num_rows] the row's logits held NaN or +inf.
        logprobs: [num_steps, num_rows] log-probability of each token before temperature, or None.
        device_seconds: Time that the device took for the batch, None where nobody measures it.
        num_saved_kv_tokens: Keys that decoding rows attended to without reading them: they were
            read for other rows of the same step.
    """

    token_ids: Int32Array
    is_nan: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32] | None = None
    device_seconds: float | None = None
    num_saved_kv_tokens: int = 0


class PendingTokens(Protocol):
    """A launched batch whose result may still be on its way."""

    def result(self) -> SampledTokens:
        """Wait for the batch and return what it sampled."""
        ...


class ModelRunner(Protocol):
    """Runs batches. They take effect in the order in which they are launched."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens put through the model since the start (the prefill counter of engine.md)."""
        ...

    def launch(self, batch: StepBatch) -> PendingTokens:
        """Start a batch.

        In every layer K and V of its tokens are stored, then copies made, then attention reads.
        """
        ...

    def close(self) -> None:
        """Release the device. Safe to call twice."""
        ...


class SizedModelRunner(ModelRunner, Protocol):
    """A runner that says how many slots it has."""

    @property
    def max_num_seqs(self) -> int:
        """Most sequences that run at once."""
        ...
