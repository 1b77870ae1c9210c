"""The GPU runner says what the torch runner says, on tiny real checkpoints in fp32."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from nanobatch.config import EngineConfig
from nanobatch.engine.factory import build_engine
from nanobatch.request import Request
from tests.checkpoints import write_checkpoint
from tests.engine.gpu_engines import gpu_engine
from tests.engine.scripted_engine import answer_all, ids_request


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", num_hidden_layers=2)


def requests() -> list[Request]:
    """Rows of all lengths, greedy and sampled, two of which share a beginning."""
    return [
        ids_request(
            row,
            [3 + (place * 7 + (row // 2) * 31 * (place > 16)) % 300 for place in range(length)],
            max_tokens=2 + row,
            temperature=0.0 if row % 2 else 0.8,
            ignore_eos=row % 3 > 0,
        )
        for row, length in enumerate([1, 20, 23, 16])
    ]


def tokens_of(engine: Any) -> dict[int, tuple[int, ...]]:
    outputs = answer_all(engine, requests())
    assert {row: output.error for row, output in outputs.items()} == dict.fromkeys(outputs)
    return {row: output.token_ids for row, output in outputs.items()}


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> dict[int, tuple[int, ...]]:
    config = EngineConfig(model=str(checkpoint), device="cpu", num_kv_blocks=64)
    return tokens_of(build_engine(config))


@pytest.mark.parametrize(
    "options",
    [
        {"num_decode_steps": 1, "max_num_batched_tokens": 24, "max_num_seqs": 3},
        {"num_decode_steps": 3, "run_ahead": 1, "num_kv_blocks": 3, "prior_output_tokens": 1},
    ],
)
def test_tokens_are_those_of_the_torch_runner(
    checkpoint: Path, expected: dict[int, tuple[int, ...]], options: dict[str, Any]
) -> None:
    assert tokens_of(gpu_engine(checkpoint, **options)) == expected


def test_copied_beginnings_make_no_difference(checkpoint: Path) -> None:
    """Of what the same step computes, the second row shares a block and copies 11 tokens."""
    beginning = [5 + place * 11 % 300 for place in range(27)]
    rows = [
        ids_request(row, [*beginning, *own], max_tokens=2, temperature=0.0)
        for row, own in enumerate([[7, 8, 9, 10, 11, 12], [20, 21]])
    ]
    config = EngineConfig(
        model=str(checkpoint), device="cpu", enable_prefix_caching=False, num_kv_blocks=64
    )
    expected = answer_all(build_engine(config), rows)
    engine = gpu_engine(checkpoint)
    actual = answer_all(engine, rows)
    assert engine.stats().num_cached_tokens == 27
    assert [actual[row].token_ids for row in range(2)] == [
        expected[row].token_ids for row in range(2)
    ]


def test_a_closed_engine_gives_its_pool_back_at_once(checkpoint: Path) -> None:
    """The next engine of the process needs the memory before a collection happens to run."""
    engine = gpu_engine(checkpoint)
    kv_cache = engine._runner._kv_cache  # type: ignore[attr-defined]
    pool = weakref.ref(kv_cache.keys[0])
    del kv_cache
    gc.disable()
    try:
        engine.close()
        assert pool() is None
        engine.close()
    finally:
        gc.enable()
