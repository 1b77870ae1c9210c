"""Sequences that hold no blocks, in the order in which they are to be admitted.

**Longest last wave.** A run ends with its longest sequence: begun last, it would run on alone. So
what is known to be long goes first, but only once what waits is no more than `LAST_WAVE` times
what runs, and no more will come. Before, a mix of lengths is better: long sequences that begin
together also need their most blocks together, and until then a part of the pool stays empty for
them. Simulated for 1,024 rows of 100 to 1,024 tokens in and out (uniform) and 3,000 rows of 20 to
60 in, 20 to 400 out:

| decode steps, by share of all rows' tokens that fit | 1/3 | 1/6 | 1/3 | 1/6 | 1/12 |
|---|---|---|---|---|---|
| always by arrival | 1952 | 3472 | 870 | 1231 | 2145 |
| longest first in the last wave (1 x, 2 x, 4 x running): 1 | 1597 | 3056 | 690 | 1076 | 2008 |
| 2 | 1549 | 3042 | 645 | 1088 | 1957 |
| 4 | 1655 | 3196 | 702 | 1159 | 2096 |
| always longest first | 1858 | 3652 | 775 | 1423 | 2985 |
"""

import heapq
from collections import deque
from typing import Final

from nanobatch.engine.sequence import Sequence, SequenceStatus

LAST_WAVE: Final = 2
"""Times as many sequences as run: when no more wait, the longest of them goes first."""


class WaitingQueue:
    """Returned sequences first, then by priority, then by arrival or length.

    A length that is not known counts as the prior, for all alike, so that such sequences always
    go in the order in which they came.

    Args:
        prior_output_tokens: Length that outputs are taken to have where it is not known.

    Attributes:
        expects_more: Whether sequences will come that are not here yet. The last wave has then not
            begun: the shortest would wait as long as longer ones keep coming.
    """

    __slots__ = (
        "_arrived",
        "_by_arrival",
        "_by_length",
        "_num_arrivals",
        "_num_prompt_tokens",
        "_num_returned",
        "_prior_output_tokens",
        "_returned",
        "expects_more",
    )

    def __init__(self, prior_output_tokens: int) -> None:
        self._prior_output_tokens = prior_output_tokens
        self.expects_more = False
        # What finishes while it waits is taken out of this when it comes to the front.
        self._returned: deque[Sequence] = deque()
        self._num_returned = 0
        # By seq_id. The heaps hold numbers only, those of sequences that have left among them.
        self._arrived: dict[int, Sequence] = {}
        self._by_arrival: list[tuple[int, ...]] = []
        self._by_length: list[tuple[int, ...]] = []
        self._num_arrivals = 0
        self._num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._arrived) + self._num_returned

    @property
    def mean_prompt_tokens(self) -> float:
        """Prompt tokens of a waiting sequence, on average."""
        return self._num_prompt_tokens / max(len(self), 1)

    def push(self, seq: Sequence) -> None:
        """Add a new sequence, in O(log n)."""
        self._num_arrivals += 1
        length = seq.max_tokens if seq.has_known_length else self._prior_output_tokens
        arrival = (self._num_arrivals, seq.seq_id)
        self._arrived[seq.seq_id] = seq
        heapq.heappush(self._by_arrival, (-seq.priority, *arrival))
        heapq.heappush(self._by_length, (-seq.priority, -length, *arrival))
        self._num_prompt_tokens += seq.num_prompt_tokens
        self._forget_those_that_left()

    def push_front(self, seq: Sequence) -> None:
        """Add a sequence that has already run, before all others."""
        self._returned.appendleft(seq)
        self._num_returned += 1
        self._num_prompt_tokens += seq.num_prompt_tokens

    def peek(self, *, num_running: int) -> Sequence | None:
        """Return the sequence that goes next, which stays there.

        Args:
            num_running: Sequences that run now.
        """
        while self._returned and self._returned[0].status is SequenceStatus.FINISHED:
            self._returned.popleft()
        if self._returned:
            return self._returned[0]
        is_last_wave = not self.expects_more and len(self._arrived) <= LAST_WAVE * num_running
        heap = self._by_length if is_last_wave else self._by_arrival
        while heap and heap[0][-1] not in self._arrived:
            heapq.heappop(heap)
        return self._arrived[heap[0][-1]] if heap else None

    def pop(self, seq: Sequence) -> None:
        """Remove the sequence that `peek` has returned."""
        if self._returned:
            self._returned.popleft()
            self._num_returned -= 1
        else:
            del self._arrived[seq.seq_id]
        self._num_prompt_tokens -= seq.num_prompt_tokens

    def discard(self, seq: Sequence) -> None:
        """Finish a sequence that is in the queue."""
        seq.status = SequenceStatus.FINISHED
        self._num_prompt_tokens -= seq.num_prompt_tokens
        if self._arrived.pop(seq.seq_id, None) is None:
            self._num_returned -= 1

    def check_integrity(self) -> None:
        """Check that the counts and the state of the waiting sequences are right.

        Raises:
            AssertionError: An invariant does not hold.
        """
        returned = [seq for seq in self._returned if seq.status is not SequenceStatus.FINISHED]
        assert len(returned) == self._num_returned, "count of returned sequences"
        waiting = [*returned, *self._arrived.values()]
        num_prompt_tokens = sum(seq.num_prompt_tokens for seq in waiting)
        assert num_prompt_tokens == self._num_prompt_tokens, "count of waiting prompt tokens"
        for heap in (self._by_arrival, self._by_length):
            assert self._arrived.keys() <= {entry[-1] for entry in heap}, "cannot be found"
        for seq in waiting:
            assert seq.status is SequenceStatus.WAITING, f"{seq} is in the queue"
            assert not seq.block_table, f"{seq} holds blocks while it waits"
            assert seq.slot is None, f"{seq} holds a slot while it waits"

    def _forget_those_that_left(self) -> None:
        """Bound the heaps: one of them is not looked at for long."""
        if max(len(self._by_arrival), len(self._by_length)) <= 2 * len(self._arrived) + 1024:
            return
        for heap in (self._by_arrival, self._by_length):
            heap[:] = [entry for entry in heap if entry[-1] in self._arrived]
            heapq.heapify(heap)
