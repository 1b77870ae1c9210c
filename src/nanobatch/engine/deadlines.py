"""How long each sequence may take, from the step that scheduled it first.

Knows sequences and a clock; ending those that are late is the core's part. As all have the same
time, the one that began first is late first, so a step looks at one sequence only.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from nanobatch.engine.sequence import Sequence

Clock = Callable[[], float]


class Deadlines:
    """Sequences that have begun and not ended, in the order of their beginning.

    Args:
        timeout_s: Seconds that a sequence may take; None lets all take as long as they want.
        clock: Monotonic time in seconds.
    """

    __slots__ = ("_begun", "_clock", "timeout_s")

    def __init__(self, timeout_s: float | None, *, clock: Clock = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        # Ordered by links: finding the first entry of a plain dict passes over removed ones.
        self._begun: OrderedDict[int, tuple[Sequence, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._begun)

    def begin(self, sequences: Iterable[Sequence]) -> None:
        """Count the time of sequences from now; no effect on those that have begun before."""
        if self.timeout_s is None:
            return
        now = self._clock()
        for seq in sequences:
            self._begun.setdefault(seq.seq_id, (seq, now))

    def end(self, seq: Sequence) -> None:
        """Forget a sequence that has ended."""
        self._begun.pop(seq.seq_id, None)

    def late(self) -> list[tuple[Sequence, float]]:
        """Return the sequences that are past their time, each with the seconds it has taken."""
        if self.timeout_s is None or not self._begun:
            return []
        now = self._clock()
        late: list[tuple[Sequence, float]] = []
        for seq, began in self._begun.values():
            if now - began <= self.timeout_s:
                break
            late.append((seq, now - began))
        return late

    def clear(self) -> None:
        """Forget all sequences."""
        self._begun.clear()
