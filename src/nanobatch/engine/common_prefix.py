"""Longest common beginnings of arrays of int32."""

import numpy as np
import numpy.typing as npt

from nanobatch.engine.sequence import INT32_BYTES


def num_common_words(one: bytes, other: bytes) -> int:
    """Return how many leading int32 two arrays have in common.

    Halves are compared as a whole (memcmp), so that long equal beginnings cost next to nothing.

    Args:
        one: Array as bytes.
        other: Array as bytes, perhaps of another length.
    """
    if one[:INT32_BYTES] != other[:INT32_BYTES]:  # as where unlike texts follow a common one
        return 0
    num_bytes = min(len(one), len(other))
    if one[:num_bytes] == other[:num_bytes]:
        return num_bytes // INT32_BYTES
    low, high = 0, num_bytes  # equal up to low, different somewhere before high
    while high - low > INT32_BYTES:
        middle = (low + high) // (2 * INT32_BYTES) * INT32_BYTES
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low // INT32_BYTES


def num_common_tokens(one: npt.NDArray[np.int32], other: npt.NDArray[np.int32]) -> int:
    """Return how many leading elements two arrays of the same length have in common.

    For arrays of hundreds: all are compared, but in three calls.

    Args:
        one: [num_tokens] int32.
        other: [num_tokens] int32.
    """
    if len(one) == 0:
        return 0
    differs = one != other
    place = int(differs.argmax())  # 0 also where nothing differs
    return place if differs[place] else len(one)
