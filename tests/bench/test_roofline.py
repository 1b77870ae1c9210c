"""The limit: performance.md's numbers for the H200, and bounds that hold for any workload."""

from pathlib import Path

import pytest

from nanobatch.bench.hardware import known_hardware
from nanobatch.bench.perfect_engine import PerfectEngine
from nanobatch.bench.roofline import roofline_limit
from nanobatch.bench.shared_rows import order_by_sharing
from nanobatch.bench.workloads import CustomShape, LengthRange, custom_workload, named_workload
from nanobatch.models.random_model import write_random_model
from nanobatch.models.source import read_model_config
from tests.bench.machines import h200, small_workload

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
        name: roofline_limit(model_config, named_workload(name), h200(), bytes_per_element=2)
        for name in LIMITS_S[size]
    }
    for name, expected_s in LIMITS_S[size].items():
        limit = limits[name]
        assert limit.seconds == pytest.approx(expected_s, rel=0.03), name
        assert limit.num_bytes / limit.seconds < h200().peak_bytes_per_s
        assert limit.num_flop / limit.seconds < h200().peak_flop_per_s
    assert limits["shared_prefix"].num_prefill_tokens == 2048 + 1000 * 100
    assert limits["many_prefixes"].num_prefill_tokens == 50 * 1024 + 2000 * 64


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
