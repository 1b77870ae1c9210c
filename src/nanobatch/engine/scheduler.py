"""Which tokens of which sequences the next step computes.

Knows sequences, blocks and slots; not arrays, models or devices. There is no prefill or decode
phase: in every step each sequence's `num_computed_tokens` catches up with its tokens under one
token budget (the formulation of vLLM's v1 scheduler). A step is made in this order:

1. Running sequences that only lack their newest token get it, oldest first. Each may need a
   block; where none is free the newest sequence is preempted: it gives up everything, goes to
   the front of the queue and is later recomputed from its prompt and what it generated.
2. The rest of the budget is filled with chunks of prompts, first of the one running sequence
   whose prompt is not finished, then of newly admitted ones. A prompt's blocks are allocated at
   admission, so nothing is preempted from here on.
3. Full blocks are published as they are scheduled, so that sequences later in the same step
   find them. That is valid because every layer stores the keys and values of the whole batch
   before its attention reads the cache.

**One prompt at a time.** The unfinished prompt goes first and takes all the budget it can use,
so at most one sequence is partly prefilled after a step, and nobody computes a prefix that
another is in the middle of: whoever shares it comes later, and finds it published.

**Who owns what is in flight.** `schedule` may run ahead: it can be called again before the
results of earlier steps were handed to `complete`. Steps take effect on the device in the order
in which they were scheduled. Therefore
- blocks and slots belong to sequences in that order too: what a sequence gives up may go to the
  next scheduled step at once, whose writes come after all reads of the steps before;
- a decoding sequence whose newest token is unread is scheduled all the same, its token is on the
  device in its slot; it is never scheduled past max_tokens, whose step is known without tokens;
- a sequence that turns out finished is owed a token that nobody wants: `complete` drops it;
- a preempted sequence *drains*: it keeps the tokens it is still owed, and is not admitted again
  before it has got them.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from nanobatch.engine.admission import AdmissionControl
from nanobatch.engine.block_manager import BlockManager, CacheEntry
from nanobatch.engine.output_lengths import PRIOR_OUTPUT_TOKENS
from nanobatch.engine.running_set import RunningSet
from nanobatch.engine.scheduler_output import (
    PrefillChunk,
    SampledToken,
    SchedulerOutput,
    SchedulerStats,
)
from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.engine.waiting_queue import WaitingQueue


class Scheduler:
    """Makes steps and takes their results.

    Args:
        block_manager: The KV pool.
        max_num_seqs: Slots: most sequences that run at once.
        max_num_batched_tokens: Most tokens of a step.
        prior_output_tokens: Length that outputs are taken to have while none has ended.
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
        self._max_num_batched_tokens = max_num_batched_tokens
        self._admission = AdmissionControl(block_manager, prior_output_tokens=prior_output_tokens)
        self._waiting = WaitingQueue()
        self._running = RunningSet(max_num_seqs)
        self._unfinished_prompt: Sequence | None = None
        self._latest_output: SchedulerOutput | None = None
        self._counters = SchedulerStats()

    def stats(self) -> SchedulerStats:
        """Return a snapshot of the counters."""
        return replace(
            self._counters, num_waiting=len(self._waiting), num_running=len(self._running)
        )

    def add(self, seq: Sequence) -> None:
        """Put a new sequence into the queue; its max_tokens must let it fit the pool alone.

        The last token it samples is never stored, so it may exceed the pool by one.
        """
        assert seq.status is SequenceStatus.WAITING and seq.num_preemptions == 0
        num_blocks = self.block_manager.num_blocks_of(seq.max_num_tokens - 1)
        assert num_blocks <= self.block_manager.num_blocks, "max_tokens exceeds the KV pool"
        self._waiting.push(seq)

    def schedule(self) -> SchedulerOutput | None:
        """Make the next step.

        Returns:
            The step, or None when all is finished or earlier results have to be read first.
        """
        output = SchedulerOutput(block_size=self.block_manager.block_size)
        num_preemptions = self._counters.num_preemptions
        self._schedule_decodes(output)
        self._schedule_chunks(output, may_admit=self._counters.num_preemptions == num_preemptions)
        self._latest_output = output
        return output if output.decoding or output.chunks else None

    def complete(
        self,
        output: SchedulerOutput,
        token_ids: npt.NDArray[np.int32],
        *,
        is_nan: npt.NDArray[np.bool_],
        logprobs: npt.NDArray[np.float32] | None = None,
    ) -> list[SampledToken]:
        """Take what a step sampled; steps are completed in the order of their making.

        Args:
            output: The step.
            token_ids: [num_sampled] in the order of `output.sampled`.
            is_nan: [num_sampled] where there is no token.
            logprobs: [num_sampled] log-probability of each token, or None.

        Returns:
            Sequences that are still wanted with their new tokens, which they already hold. The
            caller ends those with None, with a stop condition, or with max_tokens reached,
            before it calls `schedule` again.
        """
        tokens: list[int | None] = token_ids.tolist()
        for row in np.flatnonzero(is_nan).tolist():
            tokens[row] = None
        logprob_of_row = None if logprobs is None else logprobs.tolist()
        sampled: list[SampledToken] = []
        for row, (seq, token_id) in enumerate(zip(output.sampled, tokens, strict=True)):
            seq.num_in_flight -= 1
            if seq.status is SequenceStatus.FINISHED:
                continue
            sampled.append((seq, token_id))
            if token_id is not None:
                seq.output_token_ids.append(token_id)
                if logprob_of_row is not None:
                    seq.logprobs.append(logprob_of_row[row])
        return sampled

    def finish(self, seq: Sequence) -> None:
        """End a sequence that has all its tokens; what it is still owed is dropped."""
        self._end(seq, is_stopped=len(seq.output_token_ids) < seq.max_tokens)

    def abort(self, seq: Sequence) -> None:
        """End a sequence wherever it is; no effect on one that has ended."""
        self._end(seq, is_stopped=False)

    def rollback(self, output: SchedulerOutput) -> None:
        """Undo the latest step, which was not launched.

        Publications are withdrawn, decoding sequences take a step back, and every sequence
        that was to compute a chunk returns to the queue: it may have counted on blocks that
        this very step would have filled. Preemptions stay, they are valid without the step.
        """
        assert output is self._latest_output, "only the latest step can be undone, and only once"
        self._latest_output = None
        for seq, num_entries in reversed(output.publications):
            self.block_manager.withdraw(seq, num_entries)
        for seq in output.decoding:
            seq.num_computed_tokens -= 1
        for seq in output.sampled:
            seq.num_in_flight -= 1
        for chunk in reversed(output.chunks):
            chunk.sequence.num_computed_tokens = chunk.start
            self._preempt(chunk.sequence)

    def check_integrity(self) -> None:
        """Check every invariant of scheduler, queue and pool.

        Raises:
            AssertionError: An invariant does not hold.
        """
        self.block_manager.check_integrity(self._running)
        self._waiting.check_integrity()
        self._running.check_integrity(
            self._unfinished_prompt, block_size=self.block_manager.block_size
        )

    def _schedule_decodes(self, output: SchedulerOutput) -> None:
        block_size = self.block_manager.block_size
        is_caching = self.block_manager.enable_prefix_caching
        for seq in list(self._running):
            if len(output.decoding) == self._max_num_batched_tokens:
                break
            position = seq.num_computed_tokens
            if (
                position + 1 >= seq.max_num_tokens
                or seq is self._unfinished_prompt
                or seq.status is not SequenceStatus.RUNNING
            ):
                continue
            if position == len(seq.block_table) * block_size and not self._append_block(seq):
                continue
            seq.num_computed_tokens = position + 1
            seq.num_in_flight += 1
            output.decoding.append(seq)
            if is_caching and position >= (len(seq.prefix_entry_ids) + 1) * block_size - 1:
                self._publish(seq, output)
        output.sampled.extend(output.decoding)

    def _schedule_chunks(self, output: SchedulerOutput, *, may_admit: bool) -> None:
        self._admission.begin_step()
        budget = self._max_num_batched_tokens - len(output.decoding)
        while budget > 0:
            seq = self._unfinished_prompt
            if seq is None and may_admit:
                seq = self._admit_next(output.admitted)
            if seq is None:
                break
            chunk = self._schedule_chunk(seq, budget)
            budget -= chunk.num_tokens
            output.chunks.append(chunk)
            self._publish(seq, output)
            if chunk.is_last:
                seq.num_in_flight += 1
                output.sampled.append(seq)
            self._unfinished_prompt = None if chunk.is_last else seq

    def _schedule_chunk(self, seq: Sequence, budget: int) -> PrefillChunk:
        hits = self.block_manager.match_prefix(seq)
        if hits:
            self.block_manager.adopt(seq, hits)
            self._skip_cached(seq)
        start = seq.num_computed_tokens
        num_tokens = min(seq.num_tokens - start, budget)
        seq.num_computed_tokens = start + num_tokens
        return PrefillChunk(seq, start, num_tokens, start + num_tokens == seq.num_tokens)

    def _publish(self, seq: Sequence, output: SchedulerOutput) -> None:
        num_before = len(seq.prefix_entry_ids)
        if self.block_manager.publish(seq, min(seq.num_computed_tokens, seq.num_tokens)):
            output.publications.append((seq, num_before))

    def _skip_cached(self, seq: Sequence) -> None:
        # The last token is computed even if its block was found: its logits are wanted. It
        # writes over its own key and value in a block that may be shared, with what is there.
        num_cached = len(seq.prefix_entry_ids) * self.block_manager.block_size
        seq.num_computed_tokens = max(seq.num_computed_tokens, min(num_cached, seq.num_tokens - 1))

    def _append_block(self, seq: Sequence) -> bool:
        while self.block_manager.num_free_blocks == 0:
            self._preempt(self._running.newest)
            if seq.status is not SequenceStatus.RUNNING:
                return False
        self.block_manager.append_block(seq)
        return True

    def _preempt(self, seq: Sequence) -> None:
        self._counters.num_preemptions += 1
        seq.num_preemptions += 1
        seq.num_lost_tokens = seq.num_computed_tokens
        self._vacate(seq, SequenceStatus.WAITING)
        self._waiting.push_front(seq)

    def _admit_next(self, admitted: list[Sequence]) -> Sequence | None:
        seq = self._waiting.peek()
        if seq is None or self._running.is_full or seq.num_in_flight > 0:
            return None
        hits = self._admission.find_room(seq, self._running)
        if hits is None:
            return None
        self._waiting.pop()
        self._enter(seq, hits)
        admitted.append(seq)
        return seq

    def _enter(self, seq: Sequence, hits: list[CacheEntry]) -> None:
        self.block_manager.allocate(seq, hits)
        self._running.enter(seq)
        self._skip_cached(seq)
        num_cached = seq.num_computed_tokens
        self._counters.num_preempted_tokens += max(seq.num_lost_tokens - num_cached, 0)
        seq.num_lost_tokens = 0
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = num_cached
            self._counters.num_admitted_prompt_tokens += seq.num_prompt_tokens
            self._counters.num_cached_prompt_tokens += num_cached

    def _end(self, seq: Sequence, *, is_stopped: bool) -> None:
        if seq.status is SequenceStatus.FINISHED:
            return
        self._latest_output = None
        self._admission.stopping_rates.observe(seq, is_stopped=is_stopped)
        if seq.status is SequenceStatus.RUNNING:
            self._vacate(seq, SequenceStatus.FINISHED)
        else:
            self._waiting.discard(seq)

    def _vacate(self, seq: Sequence, status: SequenceStatus) -> None:
        self.block_manager.free(seq)
        self._running.leave(seq, status)
        self._admission.note_departure()
        seq.num_computed_tokens = 0
        if seq is self._unfinished_prompt:
            self._unfinished_prompt = None
