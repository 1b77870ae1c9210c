"""The order in which free blocks are reused. Knows ids only, not what blocks hold."""


class FreeBlockQueue:
    """A double-ended queue of block ids from which any id can be taken in O(1).

    Two arrays of neighbours form a ring with one extra place as its beginning and end, so that
    a block found in the prefix cache leaves the queue without a search (the layout of the Linux
    kernel's list.h, as in vLLM's free block queue).

    Args:
        num_blocks: All ids from 0 are in the queue at first, in ascending order.
    """

    __slots__ = ("_end", "_length", "_next", "_previous")

    def __init__(self, num_blocks: int) -> None:
        self._end: int = num_blocks
        self._length = num_blocks
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]

    def __len__(self) -> int:
        return self._length

    def pop_oldest(self, num_blocks: int) -> list[int]:
        """Take the ids that are to be reused first, in this order; there must be so many."""
        assert num_blocks <= self._length, "no free block"
        following, block_id = self._next, self._end
        block_ids: list[int] = []
        for _ in range(num_blocks):
            block_id = following[block_id]
            block_ids.append(block_id)
        oldest_left = following[self._end] = following[block_id]
        self._previous[oldest_left] = self._end
        self._length -= num_blocks
        return block_ids

    def remove(self, block_id: int) -> None:
        """Take an id that is in the queue, wherever it stands."""
        before, after = self._previous[block_id], self._next[block_id]
        self._next[before] = after
        self._previous[after] = before
        self._length -= 1

    def push_newest(self, block_id: int) -> None:
        """Put an id where it is reused last."""
        self._insert(block_id, before=self._previous[self._end], after=self._end)

    def push_oldest(self, block_id: int) -> None:
        """Put an id where it is reused first."""
        self._insert(block_id, before=self._end, after=self._next[self._end])

    def check_integrity(self) -> list[int]:
        """Check the links both ways.

        Returns:
            The ids in the order of reuse.

        Raises:
            AssertionError: The ring is broken.
        """
        block_ids: list[int] = []
        block_id = self._next[self._end]
        while block_id != self._end:
            assert len(block_ids) < self._length, "the ring is longer than its count"
            assert self._next[self._previous[block_id]] == block_id
            block_ids.append(block_id)
            block_id = self._next[block_id]
        assert len(block_ids) == self._length, "the ring is shorter than its count"
        return block_ids

    def _insert(self, block_id: int, *, before: int, after: int) -> None:
        self._next[before] = self._previous[after] = block_id
        self._previous[block_id] = before
        self._next[block_id] = after
        self._length += 1
