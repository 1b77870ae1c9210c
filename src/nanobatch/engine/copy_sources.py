"""Which published block begins like the next tokens of a sequence, so that these can be copied.

Beginnings are shared token by token, blocks as a whole: what two sequences have in common mostly
ends inside a block. The second one's tokens up to there are the same as in the first one's block,
after the same tokens, so their keys and values are too. Copying those takes a hundredth of the
time of computing them.

Entries that follow the same entry are kept in the order of their tokens' bytes: those with the
longest common beginning are then neighbours of the place where the sequence's own bytes belong, so
the best source is found exactly by one binary search, however many blocks begin alike. (SGLang's
radix tree, Zheng et al. 2024, splits its nodes at any token instead; it has no blocks.)

Only published blocks are here, which are full. What was shared ends inside one of them as soon as
one prompt goes on to the end of the block.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from nanobatch.engine.cache_entry import CacheEntry
from nanobatch.engine.common_prefix import num_common_words

_token_bytes = attrgetter("token_bytes")


class BlockCopy(NamedTuple):
    """Keys and values at the beginning of one block that another one gets as well.

    Attributes:
        source: Block that holds them.
        destination: Block that gets them at the same offsets.
        num_tokens: How many.
    """

    source: int
    destination: int
    num_tokens: int


class CopySources:
    """Entries by the entry that they follow, in the order of their tokens."""

    __slots__ = ("_by_parent",)

    def __init__(self) -> None:
        self._by_parent: dict[int, list[CacheEntry]] = {}

    def add(self, entry: CacheEntry) -> None:
        """Add an entry; none that follows the same one has the same tokens."""
        siblings = self._by_parent.get(entry.parent_id)
        if siblings is None:  # as for most: only where sequences part are there several
            self._by_parent[entry.parent_id] = [entry]
        else:
            insort(siblings, entry, key=_token_bytes)

    def remove(self, entry: CacheEntry) -> None:
        """Take out an entry that was added."""
        siblings = self._by_parent[entry.parent_id]
        if len(siblings) == 1:
            del self._by_parent[entry.parent_id]
        else:
            del siblings[bisect_left(siblings, entry.token_bytes, key=_token_bytes)]

    def find(self, parent_id: int, token_bytes: bytes) -> tuple[CacheEntry | None, int]:
        """Find the entry that has most tokens at its beginning in common with some others.

        Args:
            parent_id: Entry that it has to follow.
            token_bytes: The other tokens, as int32 bytes; of a block or fewer.

        Returns:
            The entry and how many tokens; None and 0 where none begins alike.
        """
        best: CacheEntry | None = None
        num_best = 0
        siblings = self._by_parent.get(parent_id, [])
        place = bisect_left(siblings, token_bytes, key=_token_bytes)
        for entry in siblings[max(place - 1, 0) : place + 1]:
            num_equal = num_common_words(entry.token_bytes, token_bytes)
            if num_equal > num_best:
                best, num_best = entry, num_equal
        return best, num_best

    def check_integrity(self, published: Iterable[CacheEntry]) -> None:
        """Check that exactly these entries are here, in order.

        Raises:
            AssertionError: They are not.
        """
        entries = [entry for siblings in self._by_parent.values() for entry in siblings]
        assert sorted(entries) == sorted(published), "copy sources"
        for parent_id, siblings in self._by_parent.items():
            assert siblings, "an empty list of siblings"
            assert all(entry.parent_id == parent_id for entry in siblings)
            assert siblings == sorted(siblings, key=_token_bytes), "order of copy sources"
