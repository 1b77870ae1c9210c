"""Rows that share beginnings attend to them together on the GPU runner, and say the same."""

import random
from pathlib import Path
from typing import Any

import pytest

from nanobatch.config import EngineConfig
from nanobatch.engine.core import EngineCore
from nanobatch.engine.factory import build_engine
from nanobatch.kernels import sharing_costs
from nanobatch.request import Request
from tests.checkpoints import write_checkpoint
from tests.engine.gpu_engines import gpu_engine
from tests.engine.scripted_engine import answer_all, ids_request

BLOCK = 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", num_hidden_layers=2)


@pytest.fixture(autouse=True)
def cheap_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model reads its keys in no time: without costs even that is worth sharing."""
    for name in ("STEP_COST_BYTES", "ITEM_COST_KEYS", "PARTIAL_COST_BYTES"):
        monkeypatch.setattr(sharing_costs, name, 0.0)


def requests() -> list[Request]:
    """Three levels: all begin alike, then two sets, then two documents each; some end early."""
    random_ = random.Random(1)

    def ids(count: int) -> list[int]:
        return [random_.randrange(3, 300) for _ in range(count)]

    system, rows = ids(3 * BLOCK), list[Request]()
    for examples in (ids(2 * BLOCK), ids(BLOCK + 1)):
        for document in (ids(BLOCK), ids(BLOCK + 2)):
            for _ in range(random_.choice([1, 2])):
                rows.append(
                    ids_request(
                        len(rows),
                        system + examples + document + ids(random_.randrange(1, 6)),
                        max_tokens=random_.randrange(2, 5),
                        temperature=0.0 if len(rows) % 2 else 0.8,
                        ignore_eos=True,
                    )
                )
    random_.shuffle(rows)
    return rows


def tokens_of(engine: EngineCore) -> dict[int, tuple[int, ...]]:
    outputs = answer_all(engine, requests())
    assert {row: output.error for row, output in outputs.items()} == dict.fromkeys(outputs)
    return {row: output.token_ids for row, output in outputs.items()}


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> dict[int, tuple[int, ...]]:
    config = EngineConfig(
        model=str(checkpoint), device="cpu", num_kv_blocks=128, enable_prefix_caching=False
    )
    return tokens_of(build_engine(config))


@pytest.mark.parametrize(
    "options",
    [
        {"num_decode_steps": 2, "max_num_seqs": 8},
        {"num_decode_steps": 1, "run_ahead": 1, "max_num_seqs": 4, "num_kv_blocks": 16},
    ],
    ids=["all together", "preempted"],
)
def test_tokens_are_those_without_sharing(
    checkpoint: Path, expected: dict[int, tuple[int, ...]], options: dict[str, Any]
) -> None:
    shared = gpu_engine(checkpoint, block_size=BLOCK, **options)
    assert tokens_of(shared) == expected
    stats = shared.stats()
    assert 0 < stats.num_saved_kv_tokens < stats.num_attended_tokens


def test_sharing_can_be_switched_off(checkpoint: Path) -> None:
    engine = gpu_engine(checkpoint, block_size=BLOCK, enable_shared_attention=False)
    answer_all(engine, requests()[:3])
    assert engine.stats().num_cached_tokens > 0
    assert engine.stats().num_saved_kv_tokens == 0


def test_layers_with_a_window_do_not_share(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "mistral", num_hidden_layers=1, sliding_window=12)
    engine = gpu_engine(folder, block_size=BLOCK)
    answer_all(engine, requests()[:3])
    assert engine.stats().num_cached_tokens > 0
    assert engine.stats().num_saved_kv_tokens == 0
