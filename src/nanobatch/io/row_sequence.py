"""Whether a stretch of an output holds exactly the rows it should, in order.

Knows row and sample numbers only; where they were read is the caller's affair.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from nanobatch.errors import CoverageError

_HINT = "run its shard again, or bring the file that its run wrote"


class RowSequence:
    """Checks the lines of one shard as they are read: each row once, its samples together.

    Args:
        name: What errors call the file.
        rows: Rows of the job that it must hold.
    """

    def __init__(self, name: str, rows: range) -> None:
        self._name = name
        self._rows = rows
        self._row_index = rows.start - 1
        self._sample_index = 0

    def check(self, row_indices: Iterable[int], sample_indices: Iterable[int]) -> int:
        """Check the next lines and return how many rows begin in them.

        Args:
            row_indices: The lines' `row_index` [num_lines].
            sample_indices: The lines' `sample_index` [num_lines].

        Raises:
            CoverageError: A row is missing, doubled, out of place or of another shard.
        """
        rows = self._with_last(self._row_index, row_indices)
        samples = self._with_last(self._sample_index, sample_indices)
        if len(rows) == 1:
            return 0
        self._require_own(rows[1:])
        is_next_row = (np.diff(rows) == 1) & (samples[1:] == 0)
        is_next_sample = (np.diff(rows) == 0) & (np.diff(samples) == 1)
        misplaced = np.flatnonzero(~(is_next_row | is_next_sample))
        if misplaced.size:
            place = int(misplaced[0])
            raise self._misplaced(int(rows[place]), int(rows[place + 1]), int(samples[place + 1]))
        num_rows = int(rows[-1] - rows[0])
        self._row_index, self._sample_index = int(rows[-1]), int(samples[-1])
        return num_rows

    def end(self) -> None:
        """Check that the last row was read.

        Raises:
            CoverageError: The file ends before it.
        """
        if self._row_index != self._rows.stop - 1:
            missing = self._row_index + 1
            raise CoverageError(
                f"{self._name} ends before row {missing:,}; it must hold rows {self._range}",
                hint=_HINT,
            )

    @property
    def _range(self) -> str:
        if not self._rows:
            return "none"
        return f"{self._rows.start:,} to {self._rows.stop - 1:,}"

    @staticmethod
    def _with_last(last: int, values: Iterable[int]) -> npt.NDArray[np.int64]:
        return np.concatenate(([last], np.asarray(values, dtype=np.int64)))

    def _require_own(self, rows: npt.NDArray[np.int64]) -> None:
        foreign = np.flatnonzero((rows < self._rows.start) | (rows >= self._rows.stop))
        if foreign.size:
            raise CoverageError(
                f"{self._name} holds row {int(rows[foreign[0]]):,}; "
                f"the rows of its shard are {self._range}",
                hint=_HINT,
            )

    def _misplaced(self, before: int, row_index: int, sample_index: int) -> CoverageError:
        if row_index > before + 1:
            what = f"lacks row {before + 1:,}"
        elif row_index == before + 1:
            what = f"lacks sample 0 of row {row_index:,}"
        elif row_index == before and sample_index:
            what = f"has sample {sample_index:,} of row {row_index:,} out of place"
        else:
            what = f"holds row {row_index:,} twice or out of order, after row {before:,}"
        return CoverageError(f"{self._name} {what}", hint=_HINT)
