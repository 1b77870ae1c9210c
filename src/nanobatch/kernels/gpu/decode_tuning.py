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
        num_warps: Warps per program and 256 bytes of a key: wider heads, and fp32, get more.
        num_stages: Depth of the software pipeline over tiles. Block ids are loaded one stage
            ahead of what they address: with 3 or 4 one tile is in flight, with 5 or 6 two, with
            7 or 8 three.
        max_registers: Most registers per thread: with 4 warps, 128 let 4 programs share an SM,
            168 let 3. None leaves it to the compiler.
        programs_per_sm: Programs launched per SM; with wider keys as many less.
        schedule: How they divide the work.
    """

    tile_bytes: int = 16384
    num_warps: int = 4
    num_stages: int = 3
    max_registers: int | None = 128
    programs_per_sm: int = 4
    schedule: Schedule = Schedule.STRIDED


FEW = DecodeTuning(num_warps=2, num_stages=7, max_registers=255, programs_per_sm=2)
DEEP = DecodeTuning(
    num_warps=2, num_stages=5, max_registers=255, programs_per_sm=3, schedule=Schedule.QUEUE
)
SMALL = DecodeTuning(
    tile_bytes=4096, num_warps=2, num_stages=5, programs_per_sm=8, schedule=Schedule.QUEUE
)

TUNING_OF_PAIRS = (
    (256, FEW),
    (384, DEEP),
    (512, DecodeTuning()),
    (3072, DEEP),
)
"""(most pairs of a row and a KV head, tuning), ascending; `tuning_for` says what was measured."""

TUNING_OF_SHARING_PAIRS = ((512, FEW),)
"""Likewise of rows that share keys, and have few to themselves. Each variant of the kernel takes
its time to compile, so there are no more than pay for that."""


def tuning_for(num_pairs: int, *, has_shared: bool = False) -> DecodeTuning:
    """Return the launch parameters of a bucket.

    TB/s of keys and values read on an H200 (4.8 TB/s on paper) in a graph, behind a small kernel as
    in a layer; 8 KV heads of 128 bfloat16, 16 and 32 query heads; "nano" are mixed lengths of 350
    to 1,800. Columns: keys of a tile, warps, stages, programs per SM.

        rows x length     64, 2, 7, 2   64, 2, 5, 3   64, 4, 3, 4   32, 4, 5, 4   16, 2, 5, 8
         32 x 1,024        3.85, 3.82    3.60, 3.55    3.22, 3.25
         48, nano          3.46, 3.43    3.88, 3.82    3.68, 3.63
         64, nano          3.81, 3.82    3.53, 3.64    3.90, 3.89
         96, nano          4.04, 4.02    4.04, 4.03    3.66, 3.66    3.71, 3.75
        192, nano          4.20, 4.16    4.21, 4.19    4.02, 4.00    4.15, 4.11
        256, nano          4.20, 4.17    4.25, 4.22    3.88, 3.83    4.11, 4.14    3.94
        384, nano                        4.39, 4.34                  4.18, 4.17    4.27, 4.22
        512, nano                                                    4.26, 4.24    4.29, 4.26
        512 x   200                                                  3.70, 3.66    3.84, 3.76
      1,000 x   200                                                  3.95          4.12

    Few programs need many bytes in flight each, and are best as many as there are pairs; many of
    unequal length need a queue. Short rows want many small programs: what each waits for, its block
    ids and then its keys, the others hide. Two warps do with a tile of 16 query heads what four do,
    and wait less for each other.

    Args:
        num_pairs: Rows of the bucket, in use or not, times KV heads.
        has_shared: Whether rows may share keys. 128 rows of 300 own keys, behind 1,024 that 32
            share, take 61 µs with small tiles and 71 with deep ones; 32 rows of 300 behind 2,048
            37 and 32.
    """
    table = TUNING_OF_SHARING_PAIRS if has_shared else TUNING_OF_PAIRS
    return next((tuning for most, tuning in table if num_pairs <= most), SMALL)


def fitting_stages(num_stages: int, *, tile_bytes: int, most_bytes: int) -> int:
    """Return how deep a pipeline may be for its tiles to fit a multiprocessor's shared memory.

    Args:
        num_stages: How deep it should be (see `DecodeTuning.num_stages`).
        tile_bytes: Of the keys of a tile; values take as much again.
        most_bytes: What a program may have for tiles.
    """
    most_tiles = most_bytes // (2 * tile_bytes)
    return min(num_stages, 2 * max(most_tiles, 1) + 2)
