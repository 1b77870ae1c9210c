"""Shuffled rows whose beginnings do not fit the pool together: each is computed once all the same.

By the count of an independent trie, in pools that hold no more than the path of one row, or a few
groups of a file. What preempted sequences compute again is their own, and is counted apart.
"""

import random
from collections.abc import Callable

import numpy as np
import pytest

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams
from tests.engine.fake_language import FakeLanguage
from tests.engine.fake_model import FakeModelRunner, Loop
from tests.engine.test_cold_run import num_tokens_by_full_blocks

BLOCK_SIZE = 4
MAX_PROMPT_TOKENS = 150
Prompts = list[list[int]]


def text(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randint(1, 9_999) for _ in range(rng.randint(low, high))]


def shared_prefix(rng: random.Random) -> Prompts:
    system = text(rng, 90, 110)
    return [system + text(rng, 1, 20) for _ in range(100)]


def many_prefixes(rng: random.Random) -> Prompts:
    prefixes = [text(rng, 70, 90) for _ in range(50)]
    return [rng.choice(prefixes) + text(rng, 1, 20) for _ in range(150)]


def three_levels(rng: random.Random) -> Prompts:
    system = text(rng, 60, 60)
    sets = [system + text(rng, 30, 30) for _ in range(6)]
    documents = [each + text(rng, 20, 20) for each in sets for _ in range(8)]
    return [document + text(rng, 5, 5) for document in documents for _ in range(4)]


def ragged_tree(rng: random.Random) -> Prompts:
    nodes: Prompts = [[]]
    for _ in range(60):
        nodes.append((rng.choice(nodes) + text(rng, 1, 40))[: MAX_PROMPT_TOKENS - 20])
    return [rng.choice(nodes) + text(rng, 1, 20) for _ in range(160)]


SHAPES: dict[str, Callable[[random.Random], Prompts]] = {
    "shared_prefix": shared_prefix,
    "many_prefixes": many_prefixes,
    "three_levels": three_levels,
    "ragged_tree": ragged_tree,
}


class Trial:
    """A run of one shape on a pool.

    Args:
        prompts: In the order in which they come.
        num_rows_that_fit: Size of the pool, in longest rows without what they share.
        max_num_seqs: Most rows that run at once.
        num_output_tokens: What each row generates, by its number.
    """

    def __init__(
        self,
        prompts: Prompts,
        *,
        num_rows_that_fit: float,
        max_num_seqs: int,
        num_output_tokens: Callable[[int], int],
        prior_output_tokens: int = 256,
    ) -> None:
        most = max(num_output_tokens(seq_id) for seq_id in range(len(prompts)))
        num_blocks = int(num_rows_that_fit * -(-(MAX_PROMPT_TOKENS + most) // BLOCK_SIZE))
        self.runner = FakeModelRunner(
            num_blocks,
            BLOCK_SIZE,
            max_num_seqs=max_num_seqs,
            language=FakeLanguage(vocab_size=100_000, eos_one_in=None),
        )
        self.scheduler = Scheduler(
            BlockManager(num_blocks, BLOCK_SIZE, min_copied_tokens=BLOCK_SIZE),  # copies none
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=64,
            prior_output_tokens=prior_output_tokens,
        )
        self.loop = Loop(self.scheduler, self.runner, run_ahead=1, num_decode_steps=2)
        self.prompts = prompts
        self.sequences = [
            Sequence(
                seq_id,
                np.array(prompt, dtype=np.int32),
                params=SamplingParams(),
                max_tokens=num_output_tokens(seq_id),
            )
            for seq_id, prompt in enumerate(prompts)
        ]

    def run(self) -> float:
        """Return computed over ideal prefill, without what preempted rows lost of their own."""
        self.loop.run(self.sequences)
        for seq in self.sequences:
            assert len(seq.output_token_ids) == seq.max_tokens
        num_lost_tokens = self.scheduler.stats().num_preempted_tokens
        ideal = num_tokens_by_full_blocks(self.prompts, BLOCK_SIZE)
        assert sum(map(len, self.prompts)) > 1.8 * ideal, "the prompts hardly share anything"
        return (self.runner.num_prefill_tokens - num_lost_tokens) / ideal


def shuffled(shape: str) -> Prompts:
    rng = random.Random(shape)
    prompts = SHAPES[shape](rng)
    rng.shuffle(prompts)
    return prompts


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("max_num_seqs", "num_rows_that_fit"), [(1, 1.0), (3, 1.5), (8, 3.0), (32, 8.0)]
)
def test_a_shared_beginning_is_computed_once_in_a_small_pool(
    shape: str, max_num_seqs: int, num_rows_that_fit: float
) -> None:
    trial = Trial(
        shuffled(shape),
        num_rows_that_fit=num_rows_that_fit,
        max_num_seqs=max_num_seqs,
        num_output_tokens=lambda seq_id: 1 + seq_id % 7,
    )
    assert 1.0 <= trial.run() <= 1.02


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("max_num_seqs", "num_rows_that_fit"), [(4, 1.5), (16, 4.0)])
def test_little_is_computed_again_where_rows_outgrow_the_pool(
    shape: str, max_num_seqs: int, num_rows_that_fit: float
) -> None:
    """A prior of one token admits whatever fits now; one row in nine then needs half a pool."""
    trial = Trial(
        shuffled(shape),
        num_rows_that_fit=num_rows_that_fit,
        max_num_seqs=max_num_seqs,
        num_output_tokens=lambda seq_id: 3 if seq_id % 9 else 120,
        prior_output_tokens=1,
    )
    assert 1.0 <= trial.run() <= 1.08
    assert trial.scheduler.stats().num_preemptions > 0


@pytest.mark.parametrize("shape", ["many_prefixes", "three_levels"])
def test_by_arrival_the_same_pool_computes_beginnings_again_and_again(shape: str) -> None:
    trial = Trial(
        shuffled(shape), num_rows_that_fit=3.0, max_num_seqs=8, num_output_tokens=lambda _: 4
    )
    trial.scheduler._lifecycle.waiting._block_size = None
    assert trial.run() > 1.5
