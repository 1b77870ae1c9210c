"""Kernels that start before the one in front of them has ended (programmatic dependent launch).

A kernel launched with `early_start` is put on the chip as soon as every program of its predecessor
has said `gdc_launch_dependents` or has ended. It computes addresses and loads what is old, then
waits in `wait_for_inputs` until the predecessor has ended and all it wrote can be seen. This hides
the latency of a launch, 0.3 to 0.45 µs of the 1.3 to 2.5 µs that a small kernel of a decode step
takes on an H200, in CUDA graphs too.

**Why results stay the same.** Three rules, which every kernel launched with `early_start` keeps:

1. Every program waits, whatever it does else, before it writes anything.
2. It lets its successor start only after its own wait.
3. Before the wait it reads only what the kernel directly in front does not write: weights, and a
   step's plan, lengths, block tables, slots and rotation, which are written once a step, by
   kernels launched further ahead.

By rule 1 a kernel that has ended has seen its predecessor end, and so on: after its wait a kernel
comes after *all* kernels in front of it, as in any stream, so reading and writing (also of memory
that is used again) is as safe as without early starts. By rule 2 a kernel that runs at all comes
after all kernels but the one directly in front: at most two run at once, and what rule 3 lets it
read early has been there before. Kernels launched normally (cuBLAS, torch) keep the order too: they
begin when their predecessor has ended and never say that their successor may start.

A waiting program takes room on a multiprocessor, but none that its predecessor still needs: all of
that one's programs are running or have ended.

Needs compute capability 9.0 (Hopper); elsewhere, and in Triton's interpreter, launches are normal.

Source: CUDA Programming Guide, "Programmatic Dependent Launch and Synchronization".
"""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

FIRST_CAPABILITY = 9
"""Compute capability (major) from which kernels can start early."""


@cache
def can_start_early(device: torch.device) -> bool:
    """Return whether kernels on a device can start before their predecessor has ended."""
    if device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device)[0] >= FIRST_CAPABILITY


def early_start(device: torch.device) -> dict[str, bool]:
    """Return the keyword arguments that launch a kernel early, where that is possible.

    Args:
        device: Where the kernel runs.

    Returns:
        The kernel's constexpr STARTS_EARLY, and the launch attribute that goes with it.
    """
    if can_start_early(device):
        return {"STARTS_EARLY": True, "launch_pdl": True}
    return {"STARTS_EARLY": False}


@triton.jit
def wait_for_inputs(STARTS_EARLY: tl.constexpr):
    """Wait for all kernels in front, then let the next one start: every program calls this once."""
    if STARTS_EARLY:
        gdc_wait()
        gdc_launch_dependents()
