"""What the scheduler says: one launch, and its counters. Plain values."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nanobatch.engine.copy_sources import BlockCopy
from nanobatch.engine.sequence import Sequence

Publication = tuple[Sequence, int]
"""A sequence that published blocks, with the number of cache entries it had before."""


@dataclass(slots=True)
class PrefillChunk:
    """Tokens of one sequence that are computed together.

    Nobody changes one; not frozen, as one is made per row.

    Attributes:
        sequence: Whose tokens.
        start: Position of the first.
        num_tokens: How many.
        is_last: Whether they end with the last known token, so that a new one is sampled.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledPrefill:
    """Chunks of prompts, to be turned into a batch before `schedule` is called again.

    Attributes:
        block_size: Tokens per KV block.
        chunks: Pieces of prompts (of preempted sequences: of all known tokens), one a sequence.
        admitted: Sequences that enter a slot with this step.
        publications: Blocks that were published as they were scheduled.
        block_copies: What sequences that enter take from others' blocks without sharing them, in
            the order of their entry. A source may be the destination of an earlier copy.
    """

    block_size: int
    chunks: list[PrefillChunk] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)

    @property
    def num_steps(self) -> int:
        """Tokens that are sampled for each sequence whose prompt ends."""
        return 1

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def sampled(self) -> list[Sequence]:
        """Sequences for which a token is sampled, in the batch's order."""
        return [chunk.sequence for chunk in self.chunks if chunk.is_last]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledDecode:
    """Several new tokens of each sequence, to be turned into a batch before the next `schedule`.

    Attributes:
        sampled: Sequences that decode, in the batch's order.
        row_ids: [num_seqs] slot of each.
        positions: [num_seqs] position of the first token that each computes.
        num_steps: Most tokens that a sequence computes.
        last_rows: Rows that reach their max_tokens with this, each with the number of tokens it
            computes; all other rows compute `num_steps`.
        num_shared_blocks: [num_seqs] leading blocks that each has in common with the one before
            it in the batch's order; 0 for the first.
    """

    sampled: list[Sequence]
    row_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    num_steps: int
    last_rows: dict[int, int]
    num_shared_blocks: npt.NDArray[np.int32]

    @property
    def num_steps_of_rows(self) -> npt.NDArray[np.int32]:
        """Tokens that each sequence computes, in [num_seqs]."""
        num_steps = np.full(len(self.sampled), self.num_steps, dtype=np.int32)
        num_steps[list(self.last_rows)] = list(self.last_rows.values())
        return num_steps

    @property
    def num_tokens(self) -> int:
        """Tokens computed if no sequence ends early."""
        return int(self.num_steps_of_rows.sum())

    @property
    def num_attended_tokens(self) -> int:
        """Keys that the rows of all steps attend to if no sequence ends early."""
        num_steps = self.num_steps_of_rows.astype(np.int64)
        return int((num_steps * self.positions + num_steps * (num_steps + 1) // 2).sum())


SchedulerOutput = ScheduledPrefill | ScheduledDecode


@dataclass(slots=True, kw_only=True)
class SchedulerStats:
    """What is there now, and counters since the start. The scheduler hands out copies.

    Attributes:
        num_waiting: Sequences in the queue.
        num_running: Sequences that hold blocks.
        num_output_tokens: Tokens generated and kept.
        num_preemptions: Sequences sent back to the queue.
        num_preempted_tokens: Tokens computed again because of that.
        num_admitted_prompt_tokens: Prompt tokens of sequences admitted for the first time.
        num_cached_prompt_tokens: Of those, tokens found in the prefix cache.
    """

    num_waiting: int = 0
    num_running: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_preempted_tokens: int = 0
    num_admitted_prompt_tokens: int = 0
    num_cached_prompt_tokens: int = 0
