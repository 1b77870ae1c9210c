"""Keeps what a CPU step frees for the next step, instead of handing it back to the system.

Every step allocates the same activations again. glibc maps large ones afresh and unmaps them when
they are freed, so that each first touch of a page is a page fault: in a decoding step of SmolLM2
20,000 of them, half of the time that its attention took.
"""

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Parameters of mallopt(3)."""

MAX_MMAP_THRESHOLD_BYTES = 32 << 20
"""The largest that glibc accepts; larger tensors are mapped, and work enough to pay for it."""

MAX_INT = 2**31 - 1


def keep_freed_memory() -> None:
    """Let this process keep freed memory for reuse; does nothing where malloc is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD_BYTES)
    mallopt(M_TRIM_THRESHOLD, MAX_INT)
    mallopt(M_TOP_PAD, MAX_MMAP_THRESHOLD_BYTES)
