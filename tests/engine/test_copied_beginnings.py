"""The same tokens in float64 whether beginnings of blocks are copied or computed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine.factory import LoadedRunner, OnProgress, build_engine
from nanobatch.engine.model_runner import load_model_runner
from nanobatch.engine.step_batch import ModelRunner, PendingTokens, PrefillBatch, StepBatch
from nanobatch.engine.torch_runner import TorchModelRunner
from nanobatch.models.source import ModelSource
from nanobatch.request import Request
from tests.checkpoints import write_checkpoint
from tests.engine.scripted_engine import answer_all, ids_request

LONGEST = 37 + 20 + 30
"""Most tokens of a row: shared beginning, its own, and its answer."""
Answers = dict[int, tuple[int, ...]]


class CopyingRunner:
    """Counts what is copied, and passes batches on in the form that a function gives them.

    Args:
        runner: Gets the batches.
        change: Changes those of prompts.
    """

    def __init__(
        self, runner: ModelRunner, change: Callable[[PrefillBatch], PrefillBatch] = lambda x: x
    ) -> None:
        self._runner = runner
        self._change = change
        self.num_copies = 0

    @property
    def num_computed_tokens(self) -> int:
        return self._runner.num_computed_tokens

    def launch(self, batch: StepBatch) -> PendingTokens:
        if isinstance(batch, PrefillBatch):
            batch = self._change(batch)
            self.num_copies += batch.slot_copies.shape[1]
        return self._runner.launch(batch)

    def close(self) -> None:
        self._runner.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", num_hidden_layers=2)


def make_requests(random: Random) -> list[Request]:
    """Rows that part from each other inside blocks, some of them twice."""
    system = [random.randrange(3, 320) for _ in range(27)]
    topics = [system + [random.randrange(3, 320) for _ in range(length)] for length in (3, 10)]
    return [
        ids_request(
            row,
            random.choice([system, *topics])
            + [random.randrange(3, 320) for _ in range(random.randint(1, 20))],
            max_tokens=random.randint(1, 30),
            temperature=0.8 * (row % 2),
        )
        for row in range(14)
    ]


def run(
    model: Path,
    requests: list[Request],
    *,
    change: Callable[[PrefillBatch], PrefillBatch] = lambda x: x,
    pool_content: float = torch.nan,
    **options: Any,
) -> tuple[Answers, int, int]:
    """Answer requests over a pool full of something; return answers, copied tokens, preemptions."""
    runners: list[CopyingRunner] = []

    def load(
        config: EngineConfig,
        source: ModelSource,
        model_config: ModelConfig,
        on_progress: OnProgress | None,
    ) -> LoadedRunner:
        runner, num_kv_blocks = load_model_runner(config, source, model_config)
        assert isinstance(runner, TorchModelRunner)
        for pool in (*runner.kv_cache.keys, *runner.kv_cache.values):
            pool.fill_(pool_content)
        runners.append(CopyingRunner(runner, change))
        return LoadedRunner(runners[0], num_kv_blocks, device_type="cpu")

    config = EngineConfig(
        model=str(model), device="cpu", dtype="float64", **{"num_kv_blocks": 200, **options}
    )
    engine = build_engine(config, load_runner=load)
    outputs = answer_all(engine, requests)
    num_preemptions = engine.stats().num_preemptions
    engine.close()
    tokens = {row: output.token_ids for row, output in outputs.items()}
    return tokens, runners[0].num_copies, num_preemptions


TIGHT = {"num_kv_blocks": -(-LONGEST // 16), "prior_output_tokens": 1, "num_decode_steps": 3}


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 16},
        {"block_size": 16, "max_num_batched_tokens": 7, "run_ahead": 2},
        {"block_size": 16, **TIGHT},
        {"block_size": 8, "max_num_batched_tokens": 64, "max_num_seqs": 3},
    ],
)
def test_tokens_are_the_same_with_copied_beginnings(model: Path, options: dict[str, Any]) -> None:
    requests = make_requests(Random(str(options)))
    expected, num_copies, _ = run(model, requests, enable_prefix_caching=False, max_num_seqs=1)
    assert num_copies == 0
    actual, num_copies, num_preemptions = run(model, requests, **options)
    assert actual == expected
    assert num_copies > 0
    assert (num_preemptions > 0) == ("prior_output_tokens" in options)


def leave_out(batch: PrefillBatch) -> PrefillBatch:
    return replace(batch, slot_copies=batch.slot_copies[:, :0])


def take_the_slot_before(batch: PrefillBatch) -> PrefillBatch:
    return replace(batch, slot_copies=batch.slot_copies - np.array([[1], [0]]))


@pytest.mark.parametrize("fault", [leave_out, take_the_slot_before])
def test_tokens_differ_where_copies_are_wrong(
    model: Path, fault: Callable[[PrefillBatch], PrefillBatch]
) -> None:
    requests = make_requests(Random(3))
    # NaN would be noticed and cured.
    expected, num_copies, _ = run(model, requests, pool_content=0.0)
    assert num_copies > 0
    assert run(model, requests, change=fault, pool_content=0.0)[0] != expected
