"""Running sequences in depth-first order of the tree that their KV blocks form.

In that order all sequences that share a beginning are neighbours, at every depth, so that attention
can take a run of rows together (`kernels.sharing_plan`). Which sequences share is settled when
they are admitted: what a sequence takes from the prefix cache is the beginning of its block table,
and tables only grow at their ends. So the order is kept from step to step and mended where
sequences enter or leave; where nobody took anything from the cache it costs nothing.

Knows block tables only: no tokens, no costs.
"""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from nanobatch.engine.common_prefix import num_common_words
from nanobatch.engine.sequence import Sequence

Int32Array = npt.NDArray[np.int32]


class RowOrder(NamedTuple):
    """In which order a step lists its sequences.

    Attributes:
        rows: [num_rows] place in the given list of the sequence at each place of the order.
        num_shared_blocks: [num_rows] leading blocks that each has in common with the one before
            it in the order; 0 for the first.
    """

    rows: Int32Array
    num_shared_blocks: Int32Array


class _Entry(NamedTuple):
    """A sequence's blocks as sortable bytes, and which admission gave it these."""

    block_bytes: bytes
    seq_id: int
    admission: int


class SharingOrder:
    """Keeps running sequences sorted by their block tables.

    Sorting by bytes puts equal beginnings together, whatever the blocks' ids; ties go by age. The
    longest common beginning of two sequences is the least of those between neighbours on the way
    from one to the other (the property of sorted strings that LCP arrays rest on; Manber & Myers,
    1990), so nothing is compared again when a sequence leaves.
    """

    __slots__ = (
        "_admissions",
        "_entered",
        "_entries",
        "_latest",
        "_num_admissions",
        "_num_common",
        "_sharing_ids",
    )

    def __init__(self) -> None:
        self._num_admissions = 0
        self._admissions: Final[dict[int, int]] = {}  # by seq_id
        self._sharing_ids: Final[set[int]] = set()
        self._entered: Final[dict[int, Sequence]] = {}  # since the last order was made
        self._entries: list[_Entry] = []
        # Blocks that each entry has in common with the one before it.
        self._num_common: Int32Array = np.empty(0, dtype=np.int32)
        self._latest: tuple[tuple[int, ...], RowOrder] | None = None

    def enter(self, seq: Sequence) -> None:
        """Add a sequence that has just been given its blocks."""
        self._num_admissions += 1
        self._admissions[seq.seq_id] = self._num_admissions
        self._entered[seq.seq_id] = seq
        self._latest = None
        if seq.prefix_entry_ids:
            self._sharing_ids.add(seq.seq_id)

    def leave(self, seq: Sequence) -> None:
        """Take out a sequence that gives up its blocks."""
        del self._admissions[seq.seq_id]
        self._entered.pop(seq.seq_id, None)
        self._latest = None
        self._sharing_ids.discard(seq.seq_id)

    def arrange(self, seqs: SequenceOf[Sequence]) -> RowOrder:
        """Order some of the running sequences.

        Args:
            seqs: Sequences that have entered and not left.

        Returns:
            Their order: as given if none of the running sequences shares a block.
        """
        if not self._sharing_ids:
            return RowOrder(
                np.arange(len(seqs), dtype=np.int32), np.zeros(len(seqs), dtype=np.int32)
            )
        seq_ids = tuple([seq.seq_id for seq in seqs])
        if self._latest is None or self._latest[0] != seq_ids:
            self._update()
            self._latest = (seq_ids, self._select(seq_ids))
        return self._latest[1]

    def _select(self, seq_ids: tuple[int, ...]) -> RowOrder:
        row_of = dict(zip(seq_ids, range(len(seq_ids)), strict=True))
        rows = np.array([row_of.get(entry.seq_id, -1) for entry in self._entries], dtype=np.int32)
        places = np.flatnonzero(rows >= 0)
        return RowOrder(rows[places], _common_of_selected(self._num_common, places))

    def _update(self) -> None:
        """Drop the entries of sequences that have left, and put in those that have entered."""
        admissions = self._admissions
        stays = [admissions.get(entry.seq_id) == entry.admission for entry in self._entries]
        if not all(stays):
            places = np.flatnonzero(stays)
            self._num_common = _common_of_selected(self._num_common, places)
            self._entries = [self._entries[place] for place in places]
        if self._entered:
            self._insert(
                [
                    _Entry(seq.block_table.tobytes(), seq_id, admissions[seq_id])
                    for seq_id, seq in self._entered.items()
                ]
            )
            self._entered.clear()

    def _insert(self, entered: Iterable[_Entry]) -> None:
        known = {
            entry.seq_id: num_common
            for entry, num_common in zip(self._entries, self._num_common.tolist(), strict=True)
        }
        self._entries = sorted([*self._entries, *entered])
        num_common, before, is_before_known = [], b"", False
        for table, seq_id, _ in self._entries:
            num_blocks = known.get(seq_id)
            is_known = num_blocks is not None
            if num_blocks is None or not is_before_known:
                num_blocks = num_common_words(before, table)
            num_common.append(num_blocks)
            before, is_before_known = table, is_known
        self._num_common = np.array(num_common, dtype=np.int32)


def _common_of_selected(num_common: Int32Array, places: npt.NDArray[np.intp]) -> Int32Array:
    """Return what each selected entry has in common with the selected one before it."""
    if not len(places):
        return np.empty(0, dtype=np.int32)
    starts = np.concatenate([[0], places[:-1] + 1])
    selected: Int32Array = np.minimum.reduceat(num_common[: places[-1] + 1], starts)
    selected[0] = 0
    return selected
