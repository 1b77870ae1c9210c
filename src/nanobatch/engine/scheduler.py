"""What the next launch computes: chunks of prompts, or the next tokens of all running sequences.

Knows sequences, blocks and slots; not arrays, models or devices. In both kinds of step each
sequence's `num_computed_tokens` catches up with its tokens (the formulation of vLLM's v1
scheduler). `step_policy` chooses the kind, `prefill_steps` and `decode_steps` make them,
`token_intake` takes their results.

**Who owns what is in flight.** `schedule` may run ahead: it can be called again before the
results of earlier steps were handed to `complete`. Steps take effect on the device in the order
in which they were scheduled. Therefore
- blocks and slots belong to sequences in that order too: what a sequence gives up may go to the
  next scheduled step at once, whose writes come after all reads of the steps before;
- a decoding sequence whose newest token is unread is scheduled all the same, its token is on the
  device in its slot; it is never scheduled past max_tokens, whose step is known without tokens;
- a sequence that turns out finished is owed tokens that nobody wants: `complete` drops them, as
  it does with those of a sequence that begins again because its logits are not numbers;
- a preempted sequence *drains*: it keeps the tokens it is still owed, and is not admitted again
  before it has got them.
"""

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.decode_steps import DecodeSteps
from nanobatch.engine.lifecycle import Lifecycle
from nanobatch.engine.output_lengths import PRIOR_OUTPUT_TOKENS
from nanobatch.engine.prefill_steps import PrefillSteps
from nanobatch.engine.scheduler_output import (
    ScheduledDecode,
    ScheduledPrefill,
    SchedulerOutput,
    SchedulerStats,
)
from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.engine.step_batch import SampledTokens
from nanobatch.engine.step_policy import StepPolicy
from nanobatch.engine.token_intake import EndedSequence, FindEnding, StopTokenTable, TokenIntake


class Scheduler:
    """Makes steps and takes their results.

    Args:
        block_manager: The KV pool.
        max_num_seqs: Slots: most sequences that run at once.
        max_num_batched_tokens: Most prompt tokens of a step.
        prior_output_tokens: Length that outputs are taken to have while none has ended.

    Attributes:
        block_manager: The KV pool.
        num_decode_steps: Most tokens of each sequence that one step generates.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prior_output_tokens: int = PRIOR_OUTPUT_TOKENS,
    ) -> None:
        self.block_manager = block_manager
        self.num_decode_steps = 1
        self._lifecycle = Lifecycle(
            block_manager, max_num_seqs=max_num_seqs, prior_output_tokens=prior_output_tokens
        )
        self._policy = StepPolicy(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        self._prefill = PrefillSteps(self._lifecycle, max_num_batched_tokens=max_num_batched_tokens)
        self._decode = DecodeSteps(self._lifecycle)
        self._stop_tokens = StopTokenTable()
        self._latest_output: SchedulerOutput | None = None

    def stats(self) -> SchedulerStats:
        """Return a snapshot of the counters."""
        return self._lifecycle.stats()

    def add(self, seq: Sequence) -> None:
        """Put a new sequence into the queue; its max_tokens must let it fit the pool alone.

        The last token it samples is never stored, so it may exceed the pool by one.
        """
        assert seq.status is SequenceStatus.WAITING and seq.num_preemptions == 0
        num_blocks = self.block_manager.num_blocks_of(seq.max_num_tokens - 1)
        assert num_blocks <= self.block_manager.num_blocks, "max_tokens exceeds the KV pool"
        self._stop_tokens.add(seq)
        self._lifecycle.waiting.push(seq)

    def expect_more(self, *, is_more: bool) -> None:
        """Say whether more sequences will be added; the order of the last ones depends on it."""
        self._lifecycle.waiting.expects_more = is_more

    def schedule(self, *, is_device_idle: bool = False) -> SchedulerOutput | None:
        """Make the next step.

        Args:
            is_device_idle: Whether nothing is in flight, and something could be.

        Returns:
            The step, or None when all is finished or earlier results have to be read first.
        """
        output: SchedulerOutput | None = None
        if self._prefill.unfinished_prompt is not None or self._wants_prompts():
            output = self._schedule_prefill(is_device_idle=is_device_idle)
        if output is None:
            output = self._schedule_decode() or self._schedule_prefill(
                is_device_idle=is_device_idle
            )
        self._latest_output = output
        return output

    def complete(
        self, output: SchedulerOutput, sampled: SampledTokens, *, find_ending: FindEnding
    ) -> list[EndedSequence]:
        """Take what a step sampled; steps are completed in the order of their making.

        Args:
            output: The step.
            sampled: Its tokens, [output.num_steps, len(output.sampled)].
            find_ending: Says how a sequence ends with its newest token, which it holds already.
                It is asked where a token is a stop token of some sequence, where the sequence has
                stop strings, and at max_tokens.

        Returns:
            Sequences that have ended by this, each with its ending. They have left the engine,
            and what they are still owed is dropped. One whose logits are not numbers has ended
            only if the blocks of other sequences cannot be the cause.
        """
        intake = TokenIntake(sampled, find_ending)
        intake.take(output, self._stop_tokens)
        self._lifecycle.counters.num_output_tokens += intake.num_kept
        if intake.ended:
            self._latest_output = None
        ended = [
            (seq, ending)
            for seq, ending in intake.ended
            if ending is not None or not self._lifecycle.distrust(seq)
        ]
        for seq, _ in ended:
            self._end(seq, is_stopped=len(seq.output_token_ids) < seq.max_tokens)
        return ended

    def clear_up(self) -> None:
        """Give back what ended sequences held; best done while a step is computed."""
        self._lifecycle.clear_up()

    def abort(self, seq: Sequence) -> None:
        """End a sequence wherever it is; no effect on one that has ended."""
        self._end(seq, is_stopped=False)

    def rollback(self, output: SchedulerOutput) -> None:
        """Undo the latest step, which was not launched.

        Publications are withdrawn, decoding sequences take their steps back, and every sequence
        that was to compute a chunk returns to the queue: it may have counted on blocks that
        this very step would have filled. Preemptions stay, they are valid without the step.
        """
        assert output is self._latest_output, "only the latest step can be undone, and only once"
        self._latest_output = None
        if isinstance(output, ScheduledDecode):
            for row, seq in enumerate(output.sampled):
                num_tokens = output.last_rows.get(row, output.num_steps)
                seq.num_computed_tokens -= num_tokens
                seq.num_in_flight -= num_tokens
            return
        for seq, num_entries in reversed(output.publications):
            self.block_manager.withdraw(seq, num_entries)
        for chunk in reversed(output.chunks):
            chunk.sequence.num_computed_tokens = chunk.start
            chunk.sequence.num_in_flight -= chunk.is_last
            self._lifecycle.preempt(chunk.sequence)

    def check_integrity(self) -> None:
        """Check every invariant of scheduler, queue and pool.

        Raises:
            AssertionError: An invariant does not hold.
        """
        self._lifecycle.check_integrity(self._prefill.unfinished_prompt)

    def _wants_prompts(self) -> bool:
        lifecycle = self._lifecycle
        return not lifecycle.is_next_draining and self._policy.wants_prompts(
            num_running=len(lifecycle.running),
            num_waiting=len(lifecycle.waiting),
            num_tokens_to_admit=lifecycle.num_tokens_to_admit,
        )

    def _schedule_prefill(self, *, is_device_idle: bool) -> ScheduledPrefill | None:
        output, is_budget_used_up = self._prefill.make_step(is_device_idle=is_device_idle)
        if not self._lifecycle.is_next_draining:
            self._policy.note_admission(
                num_running=len(self._lifecycle.running),
                num_waiting=len(self._lifecycle.waiting),
                is_budget_used_up=is_budget_used_up,
            )
        return output

    def _schedule_decode(self) -> ScheduledDecode | None:
        num_preemptions = self._lifecycle.counters.num_preemptions
        output = self._decode.make_step(self.num_decode_steps)
        if self._lifecycle.counters.num_preemptions > num_preemptions:
            self._policy.note_preemption(len(self._lifecycle.running))
        return output

    def _end(self, seq: Sequence, *, is_stopped: bool) -> None:
        if seq.status is not SequenceStatus.FINISHED:
            self._latest_output = None
            self._lifecycle.end(seq, is_stopped=is_stopped)
