"""How many rows a GPU's runner takes, decided once its weights are loaded. The GPU is made up."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanobatch.config import ROOMY_GPU_BYTES, ROOMY_GPU_MAX_NUM_SEQS, EngineConfig
from nanobatch.engine import gpu_loading
from nanobatch.engine.factory import LoadedRunner, build_engine
from nanobatch.engine.memory import MemoryBudget
from nanobatch.kernels.attention_backend import AttentionBackend
from tests.engine.scripted_engine import ScriptedRunner, answer_all, hashed, varied_requests

ASKED_FOR = 7


@pytest.mark.parametrize(
    ("free_bytes", "max_num_seqs", "expected"),
    [
        (ROOMY_GPU_BYTES, None, ROOMY_GPU_MAX_NUM_SEQS),
        (ROOMY_GPU_BYTES - 1, None, 1024),
        (ROOMY_GPU_BYTES, ASKED_FOR, ASKED_FOR),
    ],
)
def test_all_of_a_runner_is_sized_by_what_the_weights_leave(
    free_bytes: int, max_num_seqs: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = MemoryBudget(available_bytes=free_bytes, weight_bytes=0, activation_bytes=0)
    seen: list[int | None] = []

    def make(kv_cache: object = None, *_: Any, **options: Any) -> Any:
        seen.append(options["max_num_seqs"])
        return SimpleNamespace(num_late_bytes=0, max_num_seqs=options["max_num_seqs"])

    def measure(make_runner: Any, _model: object, config: EngineConfig, **_: Any) -> MemoryBudget:
        make_runner(None)
        seen.append(config.max_num_seqs)
        return budget

    def allocate(_model: object, config: EngineConfig, **_: Any) -> Any:
        seen.append(config.max_num_seqs)
        return SimpleNamespace(num_blocks=5)

    monkeypatch.setattr(gpu_loading, "cuda_budget", lambda *_, **__: budget)
    monkeypatch.setattr(gpu_loading, "GpuSampler", make)
    monkeypatch.setattr(gpu_loading, "GpuModelRunner", make)
    monkeypatch.setattr(gpu_loading, "measure_gpu_memory", measure)
    monkeypatch.setattr(gpu_loading, "allocate_kv_cache", allocate)
    model: Any = SimpleNamespace(
        device=torch.device("cuda"),
        model_config=SimpleNamespace(vocab_size=9, max_position_embeddings=64),
    )
    config = EngineConfig(max_num_seqs=max_num_seqs, enforce_eager=True)
    runner, num_blocks = gpu_loading.load_gpu_runner(model, config, AttentionBackend.TRITON)
    assert (runner.max_num_seqs, num_blocks) == (expected, 5)
    assert seen == [expected] * 5


def test_no_more_rows_run_than_the_runner_takes(null_model: Path) -> None:
    loaded = LoadedRunner(ScriptedRunner(3, hashed), 64, device_type="cpu", max_num_seqs=3)
    engine = build_engine(EngineConfig(model=str(null_model)), load_runner=lambda *_: loaded)
    assert len(answer_all(engine, varied_requests(9))) == 9
