"""Longest common beginnings of arrays of int32, as bytes."""

from nanobatch.engine.sequence import INT32_BYTES


def num_common_words(one: bytes, other: bytes) -> int:
    """Return how many leading int32 two arrays have in common.

    Halves are compared as a whole (memcmp), so that long equal beginnings cost next to nothing.

    Args:
        one: Array as bytes.
        other: Array as bytes, perhaps of another length.
    """
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
