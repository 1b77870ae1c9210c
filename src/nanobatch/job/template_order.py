"""Which order of a template's parts lets rows share most.

Knows texts and their places; not what they are parts of. Works in characters: each part's texts are
ranked once, after which an order costs a sort of the ranks. A part's end counts as a difference, so
that a text and the one that it begins with share no more than the shorter.
"""

from collections.abc import Sequence
from itertools import pairwise, permutations
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK_CHARS: Final = 64
"""Characters that are taken for a block of 16 tokens: less is not shared."""

MAX_PERMUTED: Final = 4
"""Parts of which all orders are tried; of more, one is put after the other."""

IntArray = npt.NDArray[np.int64]
Order = tuple[int, ...]


class RankedTexts:
    """What one part renders to, for each row.

    Attributes:
        ranks: Place of each row's text among the different ones in their order, in [num_rows].
        lengths: Its characters, in [num_rows].
    """

    def __init__(self, texts: Sequence[str]) -> None:
        ordered = sorted(set(texts))
        places = {text: place for place, text in enumerate(ordered)}
        self.ranks: IntArray = np.array([places[text] for text in texts], dtype=np.int64)
        self.lengths: IntArray = np.array([len(text) for text in texts], dtype=np.int64)
        # With the next text in order; the last one has none.
        common = [*(_num_common(one, other) for one, other in pairwise(ordered)), 0]
        self._common = np.array(common, dtype=np.int64)

    def common_chars(self, ranks: IntArray, higher_ranks: IntArray) -> IntArray:
        """Return the leading characters that texts have in common, pair by pair.

        That of two texts is the least of all neighbours between them.
        """
        if len(ranks) == 0:
            return ranks
        bounds = np.stack([ranks, higher_ranks], axis=1).ravel()  # [2 * num_pairs]
        return np.minimum.reduceat(self._common, bounds)[::2]


def best_order(texts: Sequence[RankedTexts], num_chars_nearly: float) -> Order:
    """Return the order of parts that shares most, or one of nearly the same that changes less.

    Args:
        texts: What each part renders to.
        num_chars_nearly: Characters by which an order may miss the best.
    """
    places = range(len(texts))
    if len(texts) > MAX_PERMUTED:
        return _greedy_order(texts)
    shared = {order: shared_chars(order, texts) for order in permutations(places)}
    enough = max(shared.values()) - num_chars_nearly
    return next(order for order in shared if shared[order] >= enough)  # the present one comes first


def _greedy_order(texts: Sequence[RankedTexts]) -> Order:
    """Put that part next which shares most behind those before it; of equal ones the first.

    Single characters count: short parts that repeat fill no block before others are behind them.
    """
    order: Order = ()
    left = list(range(len(texts)))
    while left:
        shared = [shared_chars((*order, part), texts, block_chars=1) for part in left]
        order = (*order, left.pop(shared.index(max(shared))))
    return order


def shared_chars(
    order: Order, texts: Sequence[RankedTexts], *, block_chars: int = BLOCK_CHARS
) -> int:
    """Return the characters in full blocks that an earlier row begins with too.

    Of sorted texts each shares most with the one before it, and the sum over them is the number of
    characters that a tree of all texts saves.

    Args:
        order: Places of parts; those that are left out are left out of the texts.
        texts: What each part renders to.
        block_chars: Characters of a block.
    """
    rows = np.lexsort([texts[part].ranks for part in reversed(order)])
    num_shared = np.zeros(len(rows) - 1, dtype=np.int64)
    is_equal = np.ones(len(rows) - 1, dtype=np.bool_)  # of neighbours, in all parts so far
    for part in order:
        ranks = texts[part].ranks[rows]
        differs = ranks[1:] != ranks[:-1]
        num_shared += np.where(is_equal & ~differs, texts[part].lengths[rows[1:]], 0)
        first = np.flatnonzero(is_equal & differs)
        num_shared[first] += texts[part].common_chars(ranks[first], ranks[first + 1])
        is_equal &= ~differs
    return int((num_shared // block_chars).sum()) * block_chars


def _num_common(one: str, other: str) -> int:
    """Return the leading characters that two texts have in common, by bisection."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
