"""The rows of a workload in an order in which shared beginnings stand side by side.

Arithmetic on token ids, for the roofline: what each row adds to what its neighbours have computed,
and how many different tokens a set of running rows holds. Knows no model.
"""

from dataclasses import dataclass
from itertools import pairwise, starmap

import numpy as np
import numpy.typing as npt

from nanobatch.bench.workloads import Workload

BLOCK_SIZE = 16
"""Beginnings are shared in whole blocks of so many tokens, as engines do it."""

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRows:
    """Rows in order of admission: beginnings together, those with the longest outputs first.

    Attributes:
        prompt_lens: [num_rows].
        output_lens: [num_rows].
        equal_with_previous: [num_rows] tokens of the common beginning with the row before.
        shared_with_previous: [num_rows] those of them in whole blocks.
    """

    prompt_lens: Int64Array
    output_lens: Int64Array
    equal_with_previous: Int64Array
    shared_with_previous: Int64Array

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.prompt_lens)

    @property
    def num_cached_tokens(self) -> Int64Array:
        """[num_rows] prompt tokens that need no computing; the last one always does."""
        return np.minimum(self.shared_with_previous, self.prompt_lens - 1)

    @property
    def num_distinct_tokens(self) -> int:
        """Prompt tokens that are computed where sharing does not stop at blocks."""
        return int(
            (self.prompt_lens - np.minimum(self.equal_with_previous, self.prompt_lens - 1)).sum()
        )

    def sharing_of(self, running: Int64Array) -> tuple[int, int, int]:
        """Return what a set of rows shares.

        Args:
            running: [num_running] ascending row numbers.

        Returns:
            Different tokens that two or more rows share, the sum over rows of the tokens that each
            shares, and the number of rows that share any.
        """
        if len(running) < 2:
            return 0, 0, 0
        # The common beginning of two rows is the shortest of those between them.
        between = np.minimum.reduceat(self.shared_with_previous, running[:-1] + 1)
        if running[-1] + 1 < self.num_rows:  # the last range must end at the last running row
            tail = self.shared_with_previous[running[-2] + 1 : running[-1] + 1]
            between[-1] = tail.min()
        with_previous = np.concatenate([[0], between])
        shared = np.maximum(with_previous, np.concatenate([between, [0]]))
        num_distinct = int((shared - with_previous).sum())
        return num_distinct, int(shared.sum()), int((shared > 0).sum())


def order_by_sharing(workload: Workload) -> SharedRows:
    """Return a workload's rows in the order of their admission."""
    keys = [np.asarray(prompt, dtype=">i4").tobytes() for prompt in workload.prompts]
    longest_output: dict[bytes, int] = {}
    for key, output_len in zip(keys, workload.output_lens, strict=True):
        first = key[: BLOCK_SIZE * 4]
        longest_output[first] = max(output_len, longest_output.get(first, 0))
    order = sorted(
        range(workload.num_prompts),
        key=lambda row: (-longest_output[keys[row][: BLOCK_SIZE * 4]], keys[row]),
    )
    ordered = [np.frombuffer(keys[row], dtype=">i4") for row in order]
    equal = np.array([0, *starmap(_num_equal, pairwise(ordered))], dtype=np.int64)
    return SharedRows(
        prompt_lens=np.array([len(prompt) for prompt in ordered], dtype=np.int64),
        output_lens=np.array([workload.output_lens[row] for row in order], dtype=np.int64),
        equal_with_previous=equal,
        shared_with_previous=equal // BLOCK_SIZE * BLOCK_SIZE,
    )


def _num_equal(first: Int32Array, second: Int32Array) -> int:
    """Return the length of the common beginning of two prompts."""
    num_compared = min(len(first), len(second))
    differs = first[:num_compared] != second[:num_compared]
    return int(differs.argmax()) if differs.any() else num_compared
