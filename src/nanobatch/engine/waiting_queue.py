"""Sequences that hold no blocks, in the order in which they are to be admitted.

Those of one priority go through a `PrefixForest`, so that prompts with equal beginnings go one
after the other; this module decides by what rows go that share the same.

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

from nanobatch.engine.forest_node import Leaf, Order
from nanobatch.engine.prefix_forest import PrefixForest
from nanobatch.engine.sequence import Sequence, SequenceStatus

LAST_WAVE: Final = 2
"""Times as many sequences as run: when no more wait, the longest of them goes first."""


class WaitingQueue:
    """Returned sequences first, then by priority, shared beginning, and arrival or length.

    A higher priority goes first whatever its beginning, and as long as its like keeps coming. A
    length that is not known counts as the prior, for all alike, so that such sequences always go
    in the order in which they came. What has returned goes first, since the running sequences
    that it gave way to are as old or older; the order of the others goes on where it was.

    Args:
        prior_output_tokens: Length that outputs are taken to have where it is not known.
        block_size: Tokens per KV block, of which whole ones are shared; None if nothing is.

    Attributes:
        expects_more: Whether sequences will come that are not here yet. The last wave has then not
            begun: the shortest would wait as long as longer ones keep coming.
    """

    __slots__ = (
        "_block_size",
        "_forests",
        "_leaves",
        "_num_arrivals",
        "_num_prompt_tokens",
        "_num_returned",
        "_prior_output_tokens",
        "_priorities",
        "_returned",
        "expects_more",
    )

    def __init__(self, prior_output_tokens: int, *, block_size: int | None = None) -> None:
        self._prior_output_tokens = prior_output_tokens
        self._block_size = block_size
        self.expects_more = False
        # What finishes while it waits is taken out of this when it comes to the front.
        self._returned: deque[Sequence] = deque()
        self._num_returned = 0
        self._leaves: dict[int, Leaf] = {}  # by seq_id
        self._forests: dict[int, PrefixForest] = {}  # by priority
        self._priorities: list[int] = []  # heap of their negatives
        self._num_arrivals = 0
        self._num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._leaves) + self._num_returned

    @property
    def mean_prompt_tokens(self) -> float:
        """Prompt tokens of a waiting sequence, on average."""
        return self._num_prompt_tokens / max(len(self), 1)

    def push(self, seq: Sequence) -> None:
        """Add a new sequence; see `PrefixForest` for what it costs."""
        self._num_arrivals += 1
        length = seq.max_tokens if seq.has_known_length else self._prior_output_tokens
        forest = self._forests.get(seq.priority)
        if forest is None:
            forest = self._forests[seq.priority] = PrefixForest(self._block_size)
            heapq.heappush(self._priorities, -seq.priority)
        self._leaves[seq.seq_id] = forest.push(seq, arrival=self._num_arrivals, length=length)
        self._num_prompt_tokens += seq.num_prompt_tokens

    def push_front(self, seq: Sequence) -> None:
        """Add a sequence that has already run, before all others."""
        self._returned.appendleft(seq)
        self._num_returned += 1
        self._num_prompt_tokens += seq.num_prompt_tokens

    def peek(self, *, num_running: int) -> Sequence | None:
        """Return the sequence that goes next, which stays there.

        It is the same one until a sequence comes or goes, or the last wave begins or ends.

        Args:
            num_running: Sequences that run now.
        """
        while self._returned and self._returned[0].status is SequenceStatus.FINISHED:
            self._returned.popleft()
        if self._returned:
            return self._returned[0]
        while self._priorities and not self._forests[-self._priorities[0]]:
            del self._forests[-heapq.heappop(self._priorities)]
        if not self._priorities:
            return None
        is_last_wave = not self.expects_more and len(self._leaves) <= LAST_WAVE * num_running
        order = Order.LENGTH if is_last_wave else Order.ARRIVAL
        return self._forests[-self._priorities[0]].peek(order).seq

    def pop(self, seq: Sequence) -> None:
        """Remove the sequence that `peek` has returned, to be admitted."""
        if self._returned:
            self._returned.popleft()
            self._num_returned -= 1
        else:
            self._forests[seq.priority].pop(self._leaves.pop(seq.seq_id))
        self._num_prompt_tokens -= seq.num_prompt_tokens

    def discard(self, seq: Sequence) -> None:
        """Finish a sequence that is in the queue."""
        seq.status = SequenceStatus.FINISHED
        self._num_prompt_tokens -= seq.num_prompt_tokens
        leaf = self._leaves.pop(seq.seq_id, None)
        if leaf is None:
            self._num_returned -= 1
        else:
            self._forests[seq.priority].discard(leaf)

    def check_integrity(self) -> None:
        """Check that the counts, the trees and the state of the waiting sequences are right.

        Raises:
            AssertionError: An invariant does not hold.
        """
        returned = [seq for seq in self._returned if seq.status is not SequenceStatus.FINISHED]
        assert len(returned) == self._num_returned, "count of returned sequences"
        waiting = [*returned, *(leaf.seq for leaf in self._leaves.values())]
        num_prompt_tokens = sum(seq.num_prompt_tokens for seq in waiting)
        assert num_prompt_tokens == self._num_prompt_tokens, "count of waiting prompt tokens"
        for seq in waiting:
            assert seq.status is SequenceStatus.WAITING, f"{seq} is in the queue"
            assert not seq.block_table, f"{seq} holds blocks while it waits"
            assert seq.slot is None, f"{seq} holds a slot while it waits"
        assert sorted(-priority for priority in self._priorities) == sorted(self._forests)
        assert sum(map(len, self._forests.values())) == len(self._leaves), "rows of the forests"
        for seq_id, leaf in self._leaves.items():
            assert leaf.seq.seq_id == seq_id, f"{leaf.seq} stands in another's place"
            assert leaf in self._forests[leaf.seq.priority], f"{leaf.seq} cannot be found"
        for forest in self._forests.values():
            forest.check_integrity()
