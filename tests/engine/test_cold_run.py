"""A cold run computes every shared beginning once, by the count of an independent trie."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams
from tests.engine.fake_language import FakeLanguage
from tests.engine.fake_model import FakeModelRunner, Loop

BLOCK_SIZE = 16
ORDERS: dict[str, Callable[[list[list[int]], random.Random], None]] = {
    "sorted": lambda prompts, _: prompts.sort(),
    "shuffled": lambda prompts, rng: rng.shuffle(prompts),
}


def nested_prompts(rng: random.Random, *, num_prompts: int) -> list[list[int]]:
    """Make prompts that share a system prompt, one of a few topics, and partly all the rest."""

    def text(low: int, high: int) -> list[int]:
        return [rng.randint(1, 999) for _ in range(rng.randint(low, high))]

    system = text(60, 140)
    topics = [system + text(0, 120) for _ in range(4)]
    questions = [rng.choice(topics) + text(1, 60) for _ in range(num_prompts * 3 // 4)]
    repeated = [
        question[: rng.choice([len(question), len(question) // 16 * 16])]
        for question in rng.sample(questions, num_prompts // 4)
    ]
    return questions + repeated


def num_tokens_by_full_blocks(prompts: list[list[int]], block_size: int) -> int:
    """Count tokens not in a full block shared with an earlier row, at least one a row."""
    seen: set[tuple[int, ...]] = set()
    num_tokens = 0
    for prompt in prompts:
        beginnings = [
            tuple(prompt[:stop]) for stop in range(block_size, len(prompt) + 1, block_size)
        ]
        num_shared = sum(beginning in seen for beginning in beginnings) * block_size
        num_tokens += max(len(prompt) - num_shared, 1)
        seen.update(beginnings)
    return num_tokens


def num_tokens_one_by_one(prompts: list[list[int]]) -> int:
    """Count tokens not shared with an earlier row, at least one a row: the nodes of a trie."""
    trie: dict[int, Any] = {}
    num_tokens = 0
    for prompt in prompts:
        node, num_new = trie, 0
        for token_id in prompt:
            num_new += token_id not in node
            node = node.setdefault(token_id, {})
        num_tokens += max(num_new, 1)
    return num_tokens


def num_computed_tokens(
    prompts: list[list[int]], *, budget: int, run_ahead: int, min_copied_tokens: int
) -> int:
    """Run prompts to their end over a large pool; return the prompt tokens computed."""
    num_blocks = 4_000
    runner = FakeModelRunner(
        num_blocks, BLOCK_SIZE, max_num_seqs=32, language=FakeLanguage(eos_one_in=6)
    )
    scheduler = Scheduler(
        BlockManager(num_blocks, BLOCK_SIZE, min_copied_tokens=min_copied_tokens),
        max_num_seqs=32,
        max_num_batched_tokens=budget,
    )
    Loop(scheduler, runner, run_ahead=run_ahead, num_decode_steps=1 + run_ahead).run(
        Sequence(
            seq_id,
            np.array(prompt, dtype=np.int32),
            params=SamplingParams(),
            max_tokens=8,
            eos_token_ids=(0,),
        )
        for seq_id, prompt in enumerate(prompts)
    )
    return runner.num_prefill_tokens


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("budget", [5, 16, 100, 4096])
@pytest.mark.parametrize("run_ahead", [0, 2])
def test_cold_run_computes_shared_prefixes_once(order: str, budget: int, run_ahead: int) -> None:
    rng = random.Random(f"{order} {budget} {run_ahead}")
    prompts = nested_prompts(rng, num_prompts=60)
    ORDERS[order](prompts, rng)
    whole_blocks = num_computed_tokens(
        prompts, budget=budget, run_ahead=run_ahead, min_copied_tokens=BLOCK_SIZE
    )
    with_copies = num_computed_tokens(
        prompts, budget=budget, run_ahead=run_ahead, min_copied_tokens=1
    )
    by_blocks, one_by_one = (
        num_tokens_by_full_blocks(prompts, BLOCK_SIZE),
        num_tokens_one_by_one(prompts),
    )
    assert sum(map(len, prompts)) > 1.5 * by_blocks, "the prompts hardly share anything"
    assert by_blocks <= whole_blocks <= 1.02 * by_blocks
    # Without copies 1.16 to 1.32 times as many as tokens that differ, with copies 1.01 to 1.05.
    # What is left is shared with blocks that no prompt has filled.
    assert whole_blocks > 1.1 * one_by_one
    assert one_by_one <= with_copies <= 1.06 * one_by_one
