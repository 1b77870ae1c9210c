"""Frozen configuration: bounds, exclusions, and paths that follow from others."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nanobatch.config import (
    CPU_STEP_SIZES,
    GPU_STEP_SIZES,
    ROOMY_GPU_BYTES,
    ROOMY_GPU_MAX_NUM_SEQS,
    EngineConfig,
    ModelConfig,
    RopeConfig,
    StepSizes,
)
from nanobatch.errors import ConfigError
from nanobatch.job_config import JobConfig, RowConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"block_size": 0}, "block_size is 0; it must be at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be at least 1"),
        ({"max_num_batched_tokens": -8}, "max_num_batched_tokens is -8; it must be at least 1"),
        ({"prior_output_tokens": 0}, "prior_output_tokens is 0; it must be at least 1"),
        ({"max_model_len": 0}, "max_model_len is 0; it must be at least 1"),
        ({"num_kv_blocks": 0}, "num_kv_blocks is 0; it must be at least 1"),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes is 0; it must be at least 1"),
        ({"run_ahead": -1}, "run_ahead is -1; it must be at least 0"),
        (
            {"gpu_memory_utilization": 0.0},
            "gpu_memory_utilization is 0; it must be above 0 and at most 1",
        ),
        (
            {"gpu_memory_utilization": 1.5},
            "gpu_memory_utilization is 1.5; it must be above 0 and at most 1",
        ),
        (
            {"gpu_memory_utilization": float("nan")},
            "gpu_memory_utilization is nan; it must be above 0 and at most 1",
        ),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"dtype": "fp8"}, "dtype is 'fp8'"),
    ],
)
def test_an_engine_option_out_of_bounds_is_named_with_its_bound(
    values: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        EngineConfig(**values)
    assert raised.value.message == message


def test_what_may_be_chosen_is_listed() -> None:
    with pytest.raises(ConfigError) as raised:
        EngineConfig(dtype="fp8")  # type: ignore[arg-type]
    assert raised.value.hint == "use one of auto, bfloat16, float16, float32, float64"


def test_the_kinds_of_table_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="--template and --prompt-column exclude each other"):
        RowConfig(template="{{ a }}", prompt_column="a")
    with pytest.raises(ConfigError, match="exclude each other"):
        RowConfig(template="{{ a }}", prompt_column="a", messages_column="b")


def test_param_columns_need_a_table() -> None:
    with pytest.raises(ConfigError, match="--param-columns needs a table"):
        RowConfig(param_columns=("temperature",))
    assert RowConfig(param_columns=("temperature",), prompt_column="a").is_table
    assert not RowConfig(system="be brief").is_table


def test_journal_and_summary_lie_beside_the_output() -> None:
    config = JobConfig(inputs=("a.jsonl",), output="runs/out.parquet")
    assert config.journal_dir == Path("runs/out.parquet.nanobatch")
    assert config.summary_path == Path("runs/out.parquet.summary.json")
    assert not config.writes_to_stdout
    assert JobConfig(inputs=("a.jsonl",), output="-").writes_to_stdout


def test_nothing_can_be_changed() -> None:
    config = EngineConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]
    with pytest.raises(ConfigError):
        dataclasses.replace(config, block_size=0)


def test_kv_bytes_of_a_token_count_keys_and_values_of_every_layer() -> None:
    model = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=32_000,
        hidden_size=4_096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position_embeddings=8_192,
        rope=RopeConfig(),
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    assert model.kv_bytes_per_token(2) == 128 * 1024


def test_sizes_of_steps_that_are_left_open_go_by_the_device() -> None:
    assert EngineConfig().step_sizes("cpu") == CPU_STEP_SIZES
    assert EngineConfig().step_sizes("cuda") == GPU_STEP_SIZES
    roomy = EngineConfig().step_sizes("cuda", free_bytes=ROOMY_GPU_BYTES)
    assert roomy == dataclasses.replace(GPU_STEP_SIZES, max_num_seqs=ROOMY_GPU_MAX_NUM_SEQS)
    assert EngineConfig().step_sizes("cuda", free_bytes=ROOMY_GPU_BYTES - 1) == GPU_STEP_SIZES
    given = EngineConfig(max_num_seqs=7, max_num_batched_tokens=99, run_ahead=3)
    for device_type in ("cpu", "cuda"):
        assert given.step_sizes(device_type, free_bytes=ROOMY_GPU_BYTES) == StepSizes(
            max_num_seqs=7, max_num_batched_tokens=99, run_ahead=3
        )
