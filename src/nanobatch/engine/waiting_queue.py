"""Sequences that hold no blocks, in the order in which they are to be admitted."""

import heapq
from collections import deque

from nanobatch.engine.sequence import Sequence, SequenceStatus


class WaitingQueue:
    """Returned sequences first, then by priority, then first come, first served.

    A sequence that finishes while it waits is dropped from the count at once and from the
    queue when it comes to the front.
    """

    __slots__ = ("_arrivals", "_length", "_num_arrivals", "_returned")

    def __init__(self) -> None:
        self._returned: deque[Sequence] = deque()
        self._arrivals: list[tuple[int, int, Sequence]] = []
        self._num_arrivals = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, seq: Sequence) -> None:
        """Add a new sequence behind those of its priority."""
        self._num_arrivals += 1
        heapq.heappush(self._arrivals, (-seq.priority, self._num_arrivals, seq))
        self._length += 1

    def push_front(self, seq: Sequence) -> None:
        """Add a sequence that has already run, before all others."""
        self._returned.appendleft(seq)
        self._length += 1

    def peek(self) -> Sequence | None:
        """Return the sequence at the front, which stays there."""
        while self._returned and self._returned[0].status is SequenceStatus.FINISHED:
            self._returned.popleft()
        if self._returned:
            return self._returned[0]
        while self._arrivals and self._arrivals[0][2].status is SequenceStatus.FINISHED:
            heapq.heappop(self._arrivals)
        return self._arrivals[0][2] if self._arrivals else None

    def pop(self) -> None:
        """Remove the sequence that `peek` has returned."""
        self._length -= 1
        if self._returned:
            self._returned.popleft()
        else:
            heapq.heappop(self._arrivals)

    def discard(self, seq: Sequence) -> None:
        """Finish a sequence that is in the queue."""
        seq.status = SequenceStatus.FINISHED
        self._length -= 1

    def check_integrity(self) -> None:
        """Check that the count and the state of the waiting sequences are right.

        Raises:
            AssertionError: An invariant does not hold.
        """
        seqs = [*self._returned, *(seq for _, _, seq in self._arrivals)]
        waiting = [seq for seq in seqs if seq.status is not SequenceStatus.FINISHED]
        assert len(waiting) == self._length, "count of waiting sequences"
        for seq in waiting:
            assert seq.status is SequenceStatus.WAITING, f"{seq} is in the queue"
            assert not seq.block_table, f"{seq} holds blocks while it waits"
            assert seq.slot is None, f"{seq} holds a slot while it waits"
