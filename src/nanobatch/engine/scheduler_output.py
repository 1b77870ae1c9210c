"""What the scheduler says: one step, its new tokens, and its counters. Plain values."""

from dataclasses import dataclass, field

from nanobatch.engine.sequence import Sequence

SampledToken = tuple[Sequence, int | None]
"""A sequence and its new token, or None where its logits held NaN or +inf."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens of one sequence that are computed together.

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
class SchedulerOutput:
    """One step, to be turned into a `ForwardBatch` before `schedule` is called again.

    Attributes:
        block_size: Tokens per KV block.
        decoding: Sequences that compute their newest token; they stand first in the batch.
        chunks: Pieces of prompts (of preempted sequences: of all known tokens), one a sequence.
        admitted: Sequences that enter a slot with this step.
        sampled: Sequences for which a token is sampled, in the batch's order.
        publications: Sequences that published blocks in this step, each with the number of
            entries it had before.
    """

    block_size: int
    decoding: list[Sequence] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    sampled: list[Sequence] = field(default_factory=list)
    publications: list[tuple[Sequence, int]] = field(default_factory=list)

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens that are not the one new token of a decoding sequence."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the step."""
        return len(self.decoding) + self.num_prefill_tokens


@dataclass(slots=True, kw_only=True)
class SchedulerStats:
    """What is there now, and counters since the start. The scheduler hands out copies.

    Attributes:
        num_waiting: Sequences in the queue.
        num_running: Sequences that hold blocks.
        num_preemptions: Sequences sent back to the queue.
        num_preempted_tokens: Tokens computed again because of that.
        num_admitted_prompt_tokens: Prompt tokens of sequences admitted for the first time.
        num_cached_prompt_tokens: Of those, tokens found in the prefix cache.
    """

    num_waiting: int = 0
    num_running: int = 0
    num_preemptions: int = 0
    num_preempted_tokens: int = 0
    num_admitted_prompt_tokens: int = 0
    num_cached_prompt_tokens: int = 0
