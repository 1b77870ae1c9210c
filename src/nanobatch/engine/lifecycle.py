"""Moves sequences between waiting, running and finished, with their blocks and slots.

Knows queue, pool and counters; not which step computes what, nor arrays or devices.
"""

from dataclasses import replace

from nanobatch.engine.admission import AdmissionControl
from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.cache_entry import PrefixHits
from nanobatch.engine.running_set import RunningSet
from nanobatch.engine.scheduler_output import Publication, SchedulerStats
from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.engine.waiting_queue import WaitingQueue


class Lifecycle:
    """Where every sequence is, and what it holds there.

    Args:
        block_manager: The KV pool.
        max_num_seqs: Slots: most sequences that run at once.
        prior_output_tokens: Length that outputs are taken to have while none has ended.

    Attributes:
        block_manager: The KV pool.
        waiting: Sequences that hold nothing.
        running: Sequences that hold blocks and a slot.
        counters: Counters since the start.
    """

    def __init__(
        self, block_manager: BlockManager, *, max_num_seqs: int, prior_output_tokens: int
    ) -> None:
        self.block_manager = block_manager
        self.waiting = WaitingQueue(
            prior_output_tokens,
            block_size=block_manager.block_size if block_manager.enable_prefix_caching else None,
        )
        self.running = RunningSet(max_num_seqs)
        self.counters = SchedulerStats()
        self._admission = AdmissionControl(block_manager, prior_output_tokens=prior_output_tokens)
        self._departed: list[Sequence] = []

    def stats(self) -> SchedulerStats:
        """Return a snapshot of the counters."""
        return replace(self.counters, num_waiting=len(self.waiting), num_running=len(self.running))

    @property
    def is_next_draining(self) -> bool:
        """Whether the next sequence of the queue was preempted and is still owed tokens."""
        seq = self._next()
        return seq is not None and seq.num_in_flight > 0

    @property
    def num_tokens_to_admit(self) -> float:
        """Tokens that a waiting sequence is expected to compute: not found in the cache."""
        num_admitted = self.counters.num_admitted_prompt_tokens
        if num_admitted == 0:
            return self.waiting.mean_prompt_tokens
        num_computed = num_admitted - self.counters.num_cached_prompt_tokens
        return self.waiting.mean_prompt_tokens * num_computed / num_admitted

    def begin_admission(self) -> None:
        """Make a new forecast before the next admission: tokens were added since the last."""
        self._admission.begin_step()

    def admit_next(self) -> Sequence | None:
        """Let the next sequence of the queue run, with blocks for all its known tokens.

        Returns:
            The sequence, or None if there is none or it has to wait.
        """
        seq = self._next()
        if seq is None or self.running.is_full or seq.num_in_flight > 0:
            return None
        hits = self._admission.find_room(seq, self.running)
        if hits is None and self._departed:
            self.clear_up()
            hits = self._admission.find_room(seq, self.running)
        if hits is None:
            return None
        self.waiting.pop(seq)
        self._enter(seq, hits)
        return seq

    def append_blocks(self, seq: Sequence, num_tokens: int) -> bool:
        """Give a running sequence blocks for that many tokens, preempting the newest for them.

        Returns:
            False if it was the newest itself, and is preempted now.
        """
        manager = self.block_manager
        num_blocks = manager.num_blocks_of(num_tokens)
        while len(seq.block_table) < num_blocks:
            if manager.num_free_blocks == 0:
                self.clear_up()
            while manager.num_free_blocks == 0:
                self.preempt(self.running.newest)
                if seq.status is not SequenceStatus.RUNNING:
                    return False
            num_missing = num_blocks - len(seq.block_table)
            manager.append_blocks(seq, min(num_missing, manager.num_free_blocks))
        return True

    def publish(self, seq: Sequence, publications: list[Publication]) -> None:
        """Publish the sequence's full blocks of tokens that are known and scheduled."""
        num_before = len(seq.prefix_entry_ids)
        if self.block_manager.publish(seq, min(seq.num_computed_tokens, seq.num_tokens)):
            publications.append((seq, num_before))

    def preempt(self, seq: Sequence) -> None:
        """Send a running sequence to the front of the queue without what it holds."""
        self.counters.num_preemptions += 1
        seq.num_preemptions += 1
        seq.num_lost_tokens = seq.num_computed_tokens
        self._vacate(seq)
        self.waiting.push_front(seq)

    def distrust(self, seq: Sequence) -> bool:
        """Take what a sequence holds out of the cache, and send it back if that may cure it.

        For a sequence whose logits are not numbers. A bad token spoils more than what follows it:
        the zero with which masked attention weighs its value makes NaN of earlier positions in
        the same tile, and so of blocks that other sequences share. So the cause may be blocks
        that the sequence took from the cache. It then begins again, once, with blocks of its own.
        It keeps its tokens; what it is still owed is dropped. Memory was not short, and what it
        computes again is its own: neither counts as a preemption.

        Returns:
            Whether it was sent back. If not, it has to end.
        """
        is_running = seq.status is SequenceStatus.RUNNING
        if is_running:
            self.block_manager.withdraw(seq, 0)
        seq.avoids_cache = True
        if not seq.has_cached_blocks:
            return False
        seq.has_cached_blocks = False
        seq.drops_owed_tokens = True
        if is_running:
            self._vacate(seq)
            self.waiting.push_front(seq)
        return True

    def end(self, seq: Sequence, *, is_stopped: bool) -> None:
        """Finish a sequence wherever it is; no effect on one that has ended.

        Its slot is free at once. Its blocks are given back by `clear_up`: that takes longer than
        the rest together, and can be done while the device computes the next step.

        Args:
            seq: The sequence.
            is_stopped: Whether it ended by itself, not by max_tokens or an abort.
        """
        if seq.status is SequenceStatus.FINISHED:
            return
        self._admission.stopping_rates.observe(seq, is_stopped=is_stopped)
        if seq.status is SequenceStatus.RUNNING:
            self.running.leave(seq, SequenceStatus.FINISHED)
            self._admission.note_departure()
            self._departed.append(seq)
        else:
            self.waiting.discard(seq)

    def clear_up(self) -> None:
        """Give back the blocks of sequences that have ended, and publish what they generated."""
        for seq in self._departed:
            # After the last token the device may have stopped, whatever was scheduled.
            self._give_back(seq, num_stored=seq.num_tokens - 1)
        if self._departed:
            self._departed.clear()
            self._admission.note_departure()

    def check_integrity(self, unfinished_prompt: Sequence | None) -> None:
        """Check every invariant of queue, running sequences and pool.

        Args:
            unfinished_prompt: The one sequence that may lack more than its newest token.

        Raises:
            AssertionError: An invariant does not hold.
        """
        self.block_manager.check_integrity([*self.running, *self._departed])
        self.waiting.check_integrity()
        self.running.check_integrity(unfinished_prompt, block_size=self.block_manager.block_size)

    def _next(self) -> Sequence | None:
        return self.waiting.peek(num_running=len(self.running))

    def _enter(self, seq: Sequence, hits: PrefixHits) -> None:
        num_found = self.block_manager.allocate(seq, hits)
        self.running.enter(seq)
        # The last token is computed even if its block was found: its logits are wanted. It writes
        # over its own key and value in a block that may be shared, with what is there.
        num_cached = seq.num_computed_tokens = min(num_found, seq.num_tokens - 1)
        self.counters.num_preempted_tokens += max(seq.num_lost_tokens - num_cached, 0)
        seq.num_lost_tokens = 0
        seq.has_cached_blocks = num_found > 0
        seq.drops_owed_tokens = False
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = num_cached
            self.counters.num_admitted_prompt_tokens += seq.num_prompt_tokens
            self.counters.num_cached_prompt_tokens += num_cached

    def _vacate(self, seq: Sequence) -> None:
        """Take a running sequence back among the waiting, without what it holds."""
        # What was generated is published now: nobody needs it while its sequence runs.
        self._give_back(seq, num_stored=seq.num_tokens)
        self.running.leave(seq, SequenceStatus.WAITING)
        self._admission.note_departure()

    def _give_back(self, seq: Sequence, *, num_stored: int) -> None:
        self.block_manager.publish(seq, min(seq.num_computed_tokens, num_stored))
        self.block_manager.free(seq)
        seq.num_computed_tokens = 0
