"""float64 on CPU: the same tokens with shared attention on and off, for trees of beginnings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from nanobatch.config import EngineConfig
from nanobatch.engine.factory import build_engine
from nanobatch.kernels import paged_attention
from nanobatch.request import Request, RowIndex, SamplingParams
from tests.checkpoints import write_checkpoint
from tests.engine.scripted_engine import answer_samples

Answers = dict[int, tuple[int, ...]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "qwen3", "qwen3")


def tree_requests(random: Random, *, num_rows: int = 14) -> list[Request]:
    """Rows that branch off each other at any place, most of them late; groups end in mid-run."""
    prompts = [[random.randrange(3, 320) for _ in range(170)]]
    while len(prompts) < num_rows:
        parent = random.choice(prompts)
        kept = random.choice([len(parent), random.randint(130, 165), random.randint(0, 130)])
        own = [random.randrange(3, 320) for _ in range(random.randint(1, 15))]
        prompts.append(parent[:kept] + own)
    return [
        Request(
            row_index=RowIndex(row),
            input_ids=tuple(prompt),
            params=SamplingParams(max_tokens=random.randint(1, 12), temperature=row % 2 * 1.0),
        )
        for row, prompt in enumerate(prompts)
    ]


def answers(config: EngineConfig, requests: Sequence[Request]) -> tuple[Answers, int]:
    engine = build_engine(config)
    outputs = answer_samples(engine, requests)
    num_preemptions = engine.stats().num_preemptions
    engine.close()
    return {row: samples[0].token_ids for row, samples in outputs.items()}, num_preemptions


def config_of(checkpoint: Path, *, is_tight: bool) -> EngineConfig:
    return EngineConfig(
        model=str(checkpoint),
        device="cpu",
        dtype="float64",
        block_size=8,
        num_kv_blocks=40 if is_tight else 400,
        max_num_seqs=9,
        max_num_batched_tokens=300,
        prior_output_tokens=1,
        num_decode_steps=3,
    )


@pytest.mark.parametrize("is_tight", [False, True])
def test_tokens_are_the_same_with_shared_attention_on_and_off(
    checkpoint: Path, *, is_tight: bool
) -> None:
    total_preemptions = 0
    for seed in range(3):
        requests = tree_requests(Random(seed))
        config = config_of(checkpoint, is_tight=is_tight)
        shared, num_preemptions = answers(config, requests)
        unshared, _ = answers(replace(config, enable_shared_attention=False), requests)
        assert shared == unshared
        total_preemptions += num_preemptions
    assert (total_preemptions > 0) == is_tight, "preemption is part of the one case only"


@pytest.mark.parametrize("is_prefill", [False, True])
def test_a_wrong_shared_pass_changes_tokens(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, *, is_prefill: bool
) -> None:
    """The test above has teeth, for decoding rows and for groups of prompt chunks."""
    attend_shared = paged_attention._attend_shared
    num_mutated = 0

    def mutated(
        queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal num_mutated
        attended, log_weights = attend_shared(queries, keys, values, scale=scale)
        if (len(queries) > 9) != is_prefill:  # a decoding step has at most nine rows
            return attended, log_weights
        num_mutated += 1
        return attended, log_weights - 1.0

    requests = tree_requests(Random(0))
    config = config_of(checkpoint, is_tight=False)
    expected, _ = answers(replace(config, enable_shared_attention=False), requests)
    monkeypatch.setattr(paged_attention, "_attend_shared", mutated)
    actual, _ = answers(config, requests)
    assert num_mutated > 0
    assert actual != expected
