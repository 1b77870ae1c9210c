"""Sequences that hold no blocks, in the order in which they are to be admitted."""

import heapq
from collections import deque

from nanobatch.engine.sequence import Sequence, SequenceStatus


class WaitingQueue:
    """Returned sequences first, then by priority, then longest output first, then by arrival.

    The longest outputs go first because a run ends with the last of them: begun last, they would
    run on alone. A length that is not known counts as the prior, for all alike, so that such
    sequences keep the order in which they came.

    A sequence that finishes while it waits is dropped from the count at once and from the
    queue when it comes to the front.

    Args:
        prior_output_tokens: Length that outputs are taken to have where it is not known.
    """

    __slots__ = (
        "_arrivals",
        "_length",
        "_num_arrivals",
        "_num_prompt_tokens",
        "_prior_output_tokens",
        "_returned",
    )

    def __init__(self, prior_output_tokens: int) -> None:
        self._prior_output_tokens = prior_output_tokens
        self._returned: deque[Sequence] = deque()
        self._arrivals: list[tuple[int, int, int, Sequence]] = []
        self._num_arrivals = 0
        self._length = 0
        self._num_prompt_tokens = 0

    def __len__(self) -> int:
        return self._length

    @property
    def mean_prompt_tokens(self) -> float:
        """Prompt tokens of a waiting sequence, on average."""
        return self._num_prompt_tokens / self._length if self._length else 0.0

    def push(self, seq: Sequence) -> None:
        """Add a new sequence, in O(log n)."""
        self._num_arrivals += 1
        length = seq.max_tokens if seq.has_known_length else self._prior_output_tokens
        heapq.heappush(self._arrivals, (-seq.priority, -length, self._num_arrivals, seq))
        self._count(seq, 1)

    def push_front(self, seq: Sequence) -> None:
        """Add a sequence that has already run, before all others."""
        self._returned.appendleft(seq)
        self._count(seq, 1)

    def peek(self) -> Sequence | None:
        """Return the sequence at the front, which stays there."""
        while self._returned and self._returned[0].status is SequenceStatus.FINISHED:
            self._returned.popleft()
        if self._returned:
            return self._returned[0]
        while self._arrivals and self._arrivals[0][-1].status is SequenceStatus.FINISHED:
            heapq.heappop(self._arrivals)
        return self._arrivals[0][-1] if self._arrivals else None

    def pop(self) -> None:
        """Remove the sequence that `peek` has returned."""
        seq = self._returned.popleft() if self._returned else heapq.heappop(self._arrivals)[-1]
        self._count(seq, -1)

    def discard(self, seq: Sequence) -> None:
        """Finish a sequence that is in the queue."""
        seq.status = SequenceStatus.FINISHED
        self._count(seq, -1)

    def check_integrity(self) -> None:
        """Check that the counts and the state of the waiting sequences are right.

        Raises:
            AssertionError: An invariant does not hold.
        """
        seqs = [*self._returned, *(arrival[-1] for arrival in self._arrivals)]
        waiting = [seq for seq in seqs if seq.status is not SequenceStatus.FINISHED]
        assert len(waiting) == self._length, "count of waiting sequences"
        num_prompt_tokens = sum(seq.num_prompt_tokens for seq in waiting)
        assert num_prompt_tokens == self._num_prompt_tokens, "count of waiting prompt tokens"
        for seq in waiting:
            assert seq.status is SequenceStatus.WAITING, f"{seq} is in the queue"
            assert not seq.block_table, f"{seq} holds blocks while it waits"
            assert seq.slot is None, f"{seq} holds a slot while it waits"

    def _count(self, seq: Sequence, change: int) -> None:
        self._length += change
        self._num_prompt_tokens += change * seq.num_prompt_tokens
