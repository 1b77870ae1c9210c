"""What it costs to keep the rows of a window in the prefix forest, beside hashing their blocks.

usage: python -m tests.engine.forest_cost [NUM_ROWS]
"""

import gc
import resource
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from nanobatch.engine.sequence import Sequence
from nanobatch.engine.waiting_queue import WaitingQueue
from nanobatch.request import SamplingParams

BLOCK_SIZE = 16
PORTION_ROWS = 500
MakePrompt = Callable[[], npt.NDArray[np.int32]]


class Cost(NamedTuple):
    """Seconds of processor time per row.

    Attributes:
        push: To add it.
        pop: To find it and take it out.
        hashing: To hash its blocks, as the prefix cache does once for each row.
    """

    push: float
    pop: float
    hashing: float


def prompts(shape: str, rng: np.random.Generator) -> MakePrompt:
    """Return a source of prompts of 500 tokens: `prefixes`, `nothing` or `levels` shared."""

    def text(*sizes: int) -> npt.NDArray[np.int32]:
        return rng.integers(0, 150_000, sizes, dtype=np.int32)

    if shape == "nothing":
        return lambda: text(500)
    if shape == "prefixes":
        prefixes = text(50, 400)
        return lambda: np.concatenate([prefixes[rng.integers(50)], text(100)])
    system, sets, documents = text(200), text(20, 150), text(20, 50, 100)

    def question() -> npt.NDArray[np.int32]:
        number, document = rng.integers(20), rng.integers(50)
        parts = [system, sets[number], documents[number, document], text(50)]
        return np.concatenate(parts)

    return question


def measure(shape: str, *, num_rows: int, window_rows: int) -> Cost:
    """Send rows through a queue of at most window_rows."""
    make_prompt = prompts(shape, np.random.default_rng(0))
    queue = WaitingQueue(256, block_size=BLOCK_SIZE)
    queue.expects_more = True
    push = pop = hashing = 0.0
    for first in range(0, num_rows, PORTION_ROWS):
        seqs = [
            Sequence(first + row, make_prompt(), params=SamplingParams(), max_tokens=64)
            for row in range(PORTION_ROWS)
        ]
        started = time.process_time()
        for seq in seqs:
            queue.push(seq)
        push += time.process_time() - started
        started = time.process_time()
        for seq in seqs[:50]:
            _hash_blocks(seq)
        hashing += (time.process_time() - started) * len(seqs) / 50
        started = time.process_time()
        while len(queue) > window_rows:
            _pop(queue)
        pop += time.process_time() - started
    started = time.process_time()
    while queue:
        _pop(queue)
    pop += time.process_time() - started
    return Cost(push / num_rows, pop / num_rows, hashing / num_rows)


def _pop(queue: WaitingQueue) -> None:
    seq = queue.peek(num_running=0)
    assert seq is not None
    queue.pop(seq)


def _hash_blocks(seq: Sequence) -> None:
    block_hash = b""
    for start in range(0, seq.num_prompt_tokens - BLOCK_SIZE + 1, BLOCK_SIZE):
        tokens = seq.token_bytes(start, start + BLOCK_SIZE)
        block_hash = xxhash.xxh3_128_digest(block_hash + tokens)


def main() -> None:
    """Print the cost of each shape in a window of 20,000 rows."""
    num_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    gc.freeze()
    for shape in ("prefixes", "nothing", "levels"):
        cost = measure(shape, num_rows=num_rows, window_rows=20_000)
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        sys.stdout.write(
            f"{shape}: push {cost.push * 1e6:.1f} µs, pop {cost.pop * 1e6:.1f} µs, "
            f"hashing {cost.hashing * 1e6:.1f} µs a row (= s per million); peak {peak_mib} MiB\n"
        )


if __name__ == "__main__":
    main()
