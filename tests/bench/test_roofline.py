"""The limit: performance.md's numbers for the H200, and bounds that hold for any workload."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nanobatch.bench.hardware import known_hardware
from nanobatch.bench.perfect_engine import PerfectEngine
from nanobatch.bench.roofline import roofline_limit
from nanobatch.bench.shared_rows import BLOCK_SIZE, order_by_sharing
from nanobatch.bench.workloads import (
    CustomShape,
    LengthRange,
    TokenIds,
    Workload,
    custom_workload,
)
from nanobatch.models.random_model import write_random_model
from nanobatch.models.source import read_model_config
from tests.bench.machines import h200, named, nested_workload, small_workload

LIMITS_S = {
    "0.6b": {
        "nano": 4.67,
        "nano4": 17.8,
        "shared_prefix": 1.35,
        "many_prefixes": 1.2,
        "prefill": 1.97,
    },
    "8b": {
        "nano": 12.6,
        "nano4": 45.5,
        "shared_prefix": 6.5,
        "many_prefixes": 7.4,
        "prefill": 21.5,
    },
}


@pytest.mark.parametrize("size", LIMITS_S)
def test_limits_on_an_h200_are_those_that_were_published(size: str, tmp_path: Path) -> None:
    model_config = read_model_config(write_random_model(tmp_path, size))
    limits = {
        name: roofline_limit(model_config, named(name), h200(), bytes_per_element=2)
        for name in LIMITS_S[size]
    }
    for name, expected_s in LIMITS_S[size].items():
        limit = limits[name]
        assert limit.seconds == pytest.approx(expected_s, rel=0.03), name
        assert limit.num_bytes / limit.seconds < h200().peak_bytes_per_s
        assert limit.num_flop / limit.seconds < h200().peak_flop_per_s
    assert limits["shared_prefix"].num_prefill_tokens == 2048 + 1000 * 100
    assert limits["many_prefixes"].num_prefill_tokens == 50 * 1024 + 2000 * 64


@pytest.mark.parametrize("order", [sorted, lambda prompts: sorted(prompts, reverse=True)])
def test_a_tree_s_prompts_are_computed_once_at_every_depth(
    order: Callable[[Sequence[TokenIds]], list[TokenIds]], tmp_path: Path
) -> None:
    """By a set of beginnings, in orders that have a prompt's own beginning before or after it."""
    workload = nested_workload()
    model_config = read_model_config(write_random_model(tmp_path, "smoke"))
    limit = roofline_limit(model_config, workload, h200(), bytes_per_element=2)
    prompts = order(workload.prompts)
    slack = 0 if order is sorted else 1  # who comes after a longer prompt is computed once more
    assert limit.num_prefill_tokens == num_computed(prompts, shared_in=16) - slack
    assert limit.num_distinct_tokens == num_computed(prompts, shared_in=1) - slack


def num_computed(prompts: Sequence[TokenIds], *, shared_in: int) -> int:
    """Count tokens outside of the beginnings, in whole pieces, that an earlier prompt has."""
    seen: set[TokenIds] = {()}
    num_tokens = 0
    for prompt in prompts:
        beginnings = [prompt[:end] for end in range(0, 1 + len(prompt), shared_in)]
        num_cached = max(len(each) for each in beginnings if each in seen)
        num_tokens += max(1, len(prompt) - num_cached)
        seen.update(beginnings)
    return num_tokens


def test_each_step_reads_every_token_of_a_tree_once() -> None:
    """Against a count of the beginnings that rows in decoding have, each with its own answer."""
    workload = nested_workload()
    rows = order_by_sharing(workload)
    prompts = sorted(workload.prompts, key=lambda prompt: rows_order_key(workload, prompt))
    assert [len(prompt) for prompt in prompts] == rows.prompt_lens.tolist()
    engine = PerfectEngine(rows, kv_capacity_tokens=260)  # a few rows at once
    num_shared = []
    while not engine.is_done:
        running = list(zip(engine.running.tolist(), engine.num_generated.tolist(), strict=True))
        step = engine.step()
        readers = Counter(
            prompts[row][:end]
            for row, _ in running
            for end in range(BLOCK_SIZE, len(prompts[row]) + 1, BLOCK_SIZE)
        )
        num_shared.append(BLOCK_SIZE * sum(count > 1 for count in readers.values()))
        num_pairs = BLOCK_SIZE * sum(count for count in readers.values() if count > 1)
        num_context = sum(len(prompts[row]) + num_generated for row, num_generated in running)
        assert step.num_decoding == len(running)
        assert step.num_shared_tokens == num_shared[-1]
        assert step.num_shared_pairs == num_pairs
        assert step.num_private_tokens == num_context - num_pairs
    assert len(set(num_shared)) > 3


def rows_order_key(workload: Workload, prompt: TokenIds) -> tuple[int, TokenIds]:
    """Order as documented: by the longest answer under the same first block, then by ids."""
    longest = max(
        output_len
        for other, output_len in zip(workload.prompts, workload.output_lens, strict=True)
        if other[:BLOCK_SIZE] == prompt[:BLOCK_SIZE]
    )
    return -longest, prompt


@pytest.mark.parametrize("kv_capacity_tokens", [1, 60, 10_000])
def test_every_token_is_generated_whatever_the_memory(kv_capacity_tokens: int) -> None:
    workload = small_workload()
    engine = PerfectEngine(order_by_sharing(workload), kv_capacity_tokens=kv_capacity_tokens)
    num_logits = num_prefill = 0
    while not engine.is_done:
        step = engine.step()
        num_logits += step.num_logits
        num_prefill += step.num_prefill_tokens
        assert step.num_private_tokens >= 0
    assert num_logits == workload.num_output_tokens
    assert num_prefill == workload.num_prompt_tokens - 4 * 32  # two beginnings of six are computed
    assert engine.num_reserved == 0


def test_a_prompt_longer_than_a_step_is_computed_in_chunks() -> None:
    shape = CustomShape(
        num_prompts=1, input_lens=LengthRange(40_000, 40_000), output_lens=LengthRange(2, 2)
    )
    engine = PerfectEngine(order_by_sharing(custom_workload(shape)), kv_capacity_tokens=50_000)
    steps = []
    while not engine.is_done:
        steps.append(engine.step())
    assert [step.num_prefill_tokens for step in steps] == [16_384, 16_384, 7_232, 0]
    assert sum(step.num_prefill_pairs for step in steps) == pytest.approx(40_000**2 / 2, rel=1e-4)
    assert [step.num_logits for step in steps] == [0, 0, 1, 1]


def test_only_known_gpus_in_half_precision_need_no_measuring() -> None:
    assert known_hardware("NVIDIA H200", "float16") is not None
    assert known_hardware("NVIDIA H200", "float32") is None
    assert known_hardware("NVIDIA GeForce RTX 4090", "bfloat16") is None
