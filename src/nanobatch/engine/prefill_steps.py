"""Steps that compute prompts: chunks of them, under one token budget.

**One prompt at a time.** The unfinished prompt goes first and takes all the budget it can use,
so at most one sequence is partly prefilled after a step, and nobody computes a prefix that
another is in the middle of: whoever shares it comes later, and finds it published. Nothing else
is scheduled until a prompt has ended, so what the cache holds of it is found at its admission.

**Published as scheduled.** A chunk's full blocks are published at once, so that sequences later
in the same step find them. That is valid because every layer stores the keys and values of the
whole batch before its attention reads the cache. Between the two it makes the step's copies.
"""

from typing import Final

from nanobatch.engine.lifecycle import Lifecycle
from nanobatch.engine.scheduler_output import PrefillChunk, ScheduledPrefill
from nanobatch.engine.sequence import Sequence, SequenceStatus

IDLE_TOKENS: Final = 8192
"""Most tokens of a step for which the device waits. A GPU is as fast with it as with larger ones,
and takes longer than the host needs for the next."""


class PrefillSteps:
    """Makes steps of prompt chunks. A prompt's blocks are allocated at admission.

    Args:
        lifecycle: Admits sequences.
        max_num_batched_tokens: Most tokens of a step.
    """

    __slots__ = ("_lifecycle", "_max_num_batched_tokens", "_unfinished_prompt")

    def __init__(self, lifecycle: Lifecycle, *, max_num_batched_tokens: int) -> None:
        self._lifecycle = lifecycle
        self._max_num_batched_tokens = max_num_batched_tokens
        self._unfinished_prompt: Sequence | None = None

    @property
    def unfinished_prompt(self) -> Sequence | None:
        """The one running sequence whose prompt is not computed to its end."""
        seq = self._unfinished_prompt
        return None if seq is None or seq.status is not SequenceStatus.RUNNING else seq

    def make_step(self, *, is_device_idle: bool) -> tuple[ScheduledPrefill | None, bool]:
        """Fill a step with the rest of the unfinished prompt, then with newly admitted ones.

        Args:
            is_device_idle: Whether the device waits for this step, and for its making: a small
                one is there sooner, and the next is made meanwhile.

        Returns:
            The step, None if there is nothing to compute; and whether the budget was used up, so
            that more might have been admitted.
        """
        self._lifecycle.begin_admission()
        seq = self.unfinished_prompt
        step = ScheduledPrefill(block_size=self._lifecycle.block_manager.block_size)
        budget = self._max_num_batched_tokens
        if is_device_idle:
            budget = min(budget, IDLE_TOKENS)
        while budget > 0:
            if seq is None:
                seq = self._lifecycle.admit_next()
                if seq is None:
                    break
                step.admitted.append(seq)
            chunk = _schedule_chunk(seq, budget)
            step.chunks.append(chunk)
            self._lifecycle.publish(seq, step.publications)
            budget -= chunk.num_tokens
            if chunk.is_last:
                seq.num_in_flight += 1
                seq = None
        self._unfinished_prompt = seq
        step.block_copies.extend(self._lifecycle.block_manager.take_copies())
        return step if step.chunks else None, budget == 0


def _schedule_chunk(seq: Sequence, budget: int) -> PrefillChunk:
    start = seq.num_computed_tokens
    num_tokens = min(seq.num_tokens - start, budget)
    seq.num_computed_tokens = start + num_tokens
    return PrefillChunk(seq, start, num_tokens, start + num_tokens == seq.num_tokens)
