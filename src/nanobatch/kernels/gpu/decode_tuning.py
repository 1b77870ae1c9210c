"""Launch parameters of paged decode attention, and which a bucket of rows gets.

Knows numbers only: measured by hand on one device, so that a run never times anything. What the
parameters mean to the kernel is `gpu.decode_kernel`'s.
"""

from dataclasses import dataclass
from enum import Enum


class Schedule(Enum):
    """How programs divide the pairs, which are sorted by cost."""

    STRIDED = "strided"
    """Program p takes p, p + n, p + 2n, ... of n programs."""
    QUEUE = "queue"
    """Each program takes the next pair from an integer counter when it is done with one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTuning:
    """Launch parameters. tile_bytes and num_warps decide the order of sums, the others nothing.

    Attributes:
        tile_bytes: Size of the tile of keys of one loop iteration; values take as much again.
        num_warps: Warps per program.
        num_stages: Depth of the software pipeline over tiles. Block ids are loaded one stage
            ahead of what they address: with 3 or 4 one tile is in flight, with 5 or 6 two.
        max_registers: Most registers per thread: with 4 warps, 128 let 4 programs share an SM,
            168 let 3. None leaves it to the compiler.
        programs_per_sm: Programs launched per SM.
        schedule: How they divide the work.
    """

    tile_bytes: int = 16384
    num_warps: int = 4
    num_stages: int = 3
    max_registers: int | None = 128
    programs_per_sm: int = 4
    schedule: Schedule = Schedule.STRIDED


TUNING_OF_ROWS = (
    (32, DecodeTuning(num_stages=5, max_registers=255, programs_per_sm=2)),
    (96, DecodeTuning()),
    (
        192,
        DecodeTuning(num_stages=5, max_registers=168, programs_per_sm=3, schedule=Schedule.QUEUE),
    ),
)
"""(most rows, tuning), ascending; `tuning_for` says what was measured."""

TUNING_OF_MANY_ROWS = DecodeTuning(tile_bytes=8192, num_stages=5, schedule=Schedule.QUEUE)
"""Of larger buckets."""


def tuning_for(num_rows: int) -> DecodeTuning:
    """Return the launch parameters of a bucket of rows.

    TB/s of keys and values read on an H200 (4.8 TB/s on paper), 8 KV heads of 128 bfloat16, 16 and
    32 query heads, one launch after the other in a graph; "nano" are mixed lengths of 350 to 1,800.
    Several pools in turn, so that nothing is found in L2:

        rows x length     deep tiles, queue   tiles         small tiles, queue
         59, nano             (3.2)           3.85, 3.85      3.60, 3.61
        153, nano           4.12, 4.08        3.88, 3.89      4.02, 4.01
        256, nano           4.19, 4.14        4.07, 4.02      4.24, 4.22
        256 x 1,024                           4.34, 4.34      4.35, 4.33
      1,000 x   200                           3.82, 3.76      3.99, 3.94

    32 x 1,024, one pool: two programs an SM with all registers 3.62, 3.64; three with 168 of them
    3.00, 2.94.

    Few programs need many bytes in flight each; many programs of unequal length need a queue, and
    short rows waste less of a small tile.

    Args:
        num_rows: Size of the bucket, not the number of rows in use.
    """
    return next(
        (tuning for most_rows, tuning in TUNING_OF_ROWS if num_rows <= most_rows),
        TUNING_OF_MANY_ROWS,
    )
