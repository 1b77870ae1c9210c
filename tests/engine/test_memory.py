"""The size of the KV pool: explicit, from bytes, from what is left, within a container's limit."""

from pathlib import Path
from typing import Any

import pytest

from nanobatch.config import GIB, MIB, EngineConfig, ModelConfig, RopeConfig
from nanobatch.engine import memory
from nanobatch.engine.memory import (
    MemoryBudget,
    available_main_memory_bytes,
    resolve_num_kv_blocks,
)
from nanobatch.errors import EngineError

MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    max_position_embeddings=1_000,
    rope=RopeConfig(),
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)
BLOCK_BYTES = 16 * 2 * 2 * 2 * 64 * 2
"""Tokens, keys and values, layers, heads, dimensions, bytes of a bfloat16."""


def resolve(available_bytes: int, *, max_num_seqs: int = 256, **options: Any) -> int:
    return resolve_num_kv_blocks(
        EngineConfig(**options),
        MODEL,
        max_num_seqs=max_num_seqs,
        bytes_per_element=2,
        budget=MemoryBudget(
            available_bytes=available_bytes, weight_bytes=300 * MIB, activation_bytes=20 * MIB
        ),
    )


def test_the_pool_takes_what_is_left() -> None:
    assert resolve(100 * BLOCK_BYTES) == 100
    assert resolve(101 * BLOCK_BYTES - 1) == 100


def test_the_pool_is_no_larger_than_all_sequences_together() -> None:
    assert resolve(100 * GIB, max_num_seqs=3) == 3 * 63
    assert resolve(100 * GIB, max_num_seqs=3, max_model_len=160) == 3 * 10


def test_an_explicit_number_of_blocks_wins_over_bytes_and_bytes_over_the_budget() -> None:
    assert resolve(7 * BLOCK_BYTES, kv_cache_memory_bytes=9 * BLOCK_BYTES) == 9
    assert resolve(0, kv_cache_memory_bytes=9 * BLOCK_BYTES, num_kv_blocks=5) == 5
    assert resolve(0, num_kv_blocks=5) == 5


@pytest.mark.parametrize("available_bytes", [BLOCK_BYTES - 1, 0, -5 * GIB])
def test_too_little_memory_says_what_takes_it_and_what_to_change(available_bytes: int) -> None:
    with pytest.raises(EngineError) as raised:
        resolve(available_bytes)
    assert raised.value.message == (
        "no memory for the KV cache: weights take 300 MiB, the largest step 20 MiB, and one "
        "sequence of 1,000 tokens needs 1 MiB, but 0 MiB are left"
    )
    assert raised.value.hint is not None
    for flag in ("--max-num-batched-tokens", "--max-model-len", "--gpu-memory-utilization"):
        assert flag in raised.value.hint


def test_too_small_a_given_pool_points_to_its_own_flag() -> None:
    with pytest.raises(EngineError) as raised:
        resolve(GIB, kv_cache_memory_bytes=100)
    assert raised.value.hint == "raise --kv-cache-memory"


def write_cgroup(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, limit: str, used: int, cached: int
) -> None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"anon {used - cached}\nfile {cached + 7}\ninactive_file {cached // 2}\n"
        f"active_file {cached - cached // 2}\nshmem 7\n"
    )
    monkeypatch.setattr(memory, "_CGROUP_LIMIT", folder / "memory.max")
    monkeypatch.setattr(memory, "_CGROUP_USED", folder / "memory.current")
    monkeypatch.setattr(memory, "_CGROUP_STAT", folder / "memory.stat")


def test_a_containers_limit_bounds_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cgroup(tmp_path, monkeypatch, limit=str(100 * MIB), used=60 * MIB, cached=0)
    assert available_main_memory_bytes() == 40 * MIB


def test_files_that_the_kernel_can_drop_count_as_free_in_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights just read fill the page cache up to the container's limit."""
    write_cgroup(tmp_path, monkeypatch, limit=str(100 * MIB), used=99 * MIB, cached=80 * MIB)
    assert available_main_memory_bytes() == 81 * MIB


def test_without_a_limit_the_kernels_word_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cgroup(tmp_path, monkeypatch, limit="max", used=10**18, cached=0)
    unlimited = available_main_memory_bytes()
    assert unlimited > 0
    monkeypatch.setattr(memory, "_CGROUP_LIMIT", tmp_path / "missing")
    assert available_main_memory_bytes() == pytest.approx(unlimited, rel=0.5)
