"""The master test: the same tokens whatever the engine's configuration (engine.md, Sameness 1)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine import factory
from nanobatch.engine.factory import LoadedRunner, OnProgress, build_engine
from nanobatch.engine.model_runner import load_model_runner
from nanobatch.engine.step_batch import ModelRunner, PendingTokens, PrefillBatch, StepBatch
from nanobatch.engine.torch_runner import TorchModelRunner
from nanobatch.models.source import ModelSource
from nanobatch.request import Request, RequestOutputs, RowIndex, SamplingParams
from tests.checkpoints import write_checkpoint
from tests.engine.scripted_engine import answer_samples

FAMILIES = ("llama3", "mistral", "qwen2", "qwen3")
LONGEST = 48 + 20 + 40
"""Most tokens of a row: shared beginning, its own, and its answer."""
TIGHT: dict[str, Any] = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 4096,
    "prior_output_tokens": 1,
    "enable_prefix_caching": False,
}
Answers = dict[int, list[tuple[tuple[int, ...], str | None]]]
"""Tokens and finish reason of each sample, by row."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    folder = tmp_path_factory.mktemp("checkpoints")
    yield {family: write_checkpoint(folder / family, family) for family in FAMILIES}


def make_requests(random: Random, *, num_rows: int = 16) -> list[Request]:
    """Rows over a few shared beginnings, greedy and sampled ones mixed."""
    beginnings = [[random.randrange(3, 320) for _ in range(length)] for length in (0, 21, 48)]
    requests = []
    for index in range(num_rows):
        own = [random.randrange(3, 320) for _ in range(random.randint(1, 20))]
        params = SamplingParams(
            max_tokens=random.randint(1, 40),
            stop_token_ids=tuple(range(3, 320, 9)) if random.random() < 0.3 else (),
            temperature=random.choice([0.0, 0.7, 1.3]),
            top_k=random.choice([None, None, 20]),
            top_p=random.choice([1.0, 0.9]),
            repetition_penalty=random.choice([1.0, 1.2]),
            frequency_penalty=random.choice([0.0, 0.4]),
            ignore_eos=random.random() < 0.3,
        )
        prompt = tuple(random.choice(beginnings) + own)
        requests.append(Request(row_index=RowIndex(index), input_ids=prompt, params=params))
    return requests


def random_config(random: Random, model: Path) -> EngineConfig:
    block_size = random.choice([1, 2, 5, 16, 32])
    blocks_for_longest = -(-LONGEST // block_size)
    return EngineConfig(
        model=str(model),
        device="cpu",
        dtype="float64",
        block_size=block_size,
        # From a pool that holds hardly more than one row (preemption) to one that holds all.
        num_kv_blocks=blocks_for_longest * random.choice([1, 1, 2, 12]),
        max_num_seqs=random.choice([2, 5, 16]),
        max_num_batched_tokens=random.choice([5, 17, 64, 4096]),
        enable_prefix_caching=random.random() < 0.7,
        enable_shared_attention=random.random() < 0.7,
        # Told to expect one token, the scheduler admits too many and has to preempt.
        prior_output_tokens=random.choice([1, 256]),
        run_ahead=random.choice([0, 0, 1, 2]),
        num_decode_steps=random.choice([1, 2, 5]),
    )


def answers(outputs: Mapping[int, RequestOutputs]) -> Answers:
    assert all(output.error is None for samples in outputs.values() for output in samples)
    return {
        row: [(output.token_ids, output.finish_reason) for output in samples]
        for row, samples in outputs.items()
    }


def run(
    config: EngineConfig,
    requests: Sequence[Request],
    *,
    load_runner: factory.LoadRunner | None = None,
) -> tuple[Answers, int]:
    """Answer requests; return them and the number of preemptions."""
    engine = build_engine(config, load_runner=load_runner)
    outputs = answer_samples(engine, requests)
    num_preemptions = engine.stats().num_preemptions
    engine.close()
    return answers(outputs), num_preemptions


def one_by_one(model: Path, requests: Sequence[Request]) -> Answers:
    """The reference: each row alone, nothing cached, its prompt in one piece."""
    config = EngineConfig(
        model=str(model),
        device="cpu",
        dtype="float64",
        num_kv_blocks=16,
        max_num_seqs=1,
        enable_prefix_caching=False,
    )
    return run(config, requests)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_do_not_depend_on_the_engine_configuration(
    family: str, checkpoints: dict[str, Path]
) -> None:
    random = Random(f"sameness {family}")
    total_preemptions = 0
    for _ in range(2):
        requests = make_requests(random)
        expected = one_by_one(checkpoints[family], requests)
        for number in range(4):
            config = random_config(random, checkpoints[family])
            if number == 0:  # certain to preempt: too many rows for a pool that is told little
                config = replace(config, **TIGHT, num_kv_blocks=-(-LONGEST // config.block_size))
            shuffled = random.sample(requests, len(requests))
            actual, num_preemptions = run(config, shuffled)
            total_preemptions += num_preemptions
            assert actual == expected, config
    assert total_preemptions > 0, "no configuration preempted anything: the test proves less"


def test_a_sample_does_not_depend_on_how_many_there_are_nor_on_the_configuration(
    checkpoints: dict[str, Path],
) -> None:
    random = Random("samples")
    model = checkpoints["qwen3"]
    requests = make_requests(random, num_rows=4)

    def with_samples(num_samples: int) -> list[Request]:
        """Rows whose samples are equal (greedy) and such whose samples differ, in turn."""
        return [
            replace(
                request,
                params=replace(
                    request.params, n=num_samples, temperature=row % 2 * 1.2, max_tokens=20
                ),
            )
            for row, request in enumerate(requests)
        ]

    expected = one_by_one(model, with_samples(3))
    assert {row: samples[:1] for row, samples in expected.items()} == one_by_one(
        model, with_samples(1)
    )
    assert [len({*expected[row]}) for row in range(4)] == [1, 3, 1, 3]
    for number, num_samples in enumerate((3, 2)):
        config = random_config(random, model)
        if number == 0:
            config = replace(config, **TIGHT, num_kv_blocks=-(-LONGEST // config.block_size))
        actual, num_preemptions = run(config, with_samples(num_samples))
        assert number > 0 or num_preemptions > 0
        assert actual == {row: samples[:num_samples] for row, samples in expected.items()}, config


class ShiftedPositions:
    """A runner with a fault: every prompt position but the first few is one too high."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    @property
    def num_computed_tokens(self) -> int:
        return self._runner.num_computed_tokens

    def launch(self, batch: StepBatch) -> PendingTokens:
        if isinstance(batch, PrefillBatch):
            positions = batch.positions + (batch.positions > 8).astype("int32")
            batch = replace(batch, positions=positions)
        return self._runner.launch(batch)

    def close(self) -> None:
        self._runner.close()


def load_with_shifted_positions(
    config: EngineConfig,
    source: ModelSource,
    model_config: ModelConfig,
    on_progress: OnProgress | None,
) -> LoadedRunner:
    runner, num_kv_blocks = load_model_runner(config, source, model_config)
    return LoadedRunner(ShiftedPositions(runner), num_kv_blocks, device_type="cpu")


def load_with_other_rope_base(
    config: EngineConfig,
    source: ModelSource,
    model_config: ModelConfig,
    on_progress: OnProgress | None,
) -> LoadedRunner:
    rope = replace(model_config.rope, theta=model_config.rope.theta * 1.05)
    runner, num_kv_blocks = load_model_runner(config, source, replace(model_config, rope=rope))
    return LoadedRunner(runner, num_kv_blocks, device_type="cpu")


@pytest.mark.parametrize("fault", [load_with_shifted_positions, load_with_other_rope_base])
def test_a_faulty_position_or_rope_base_changes_tokens(
    fault: factory.LoadRunner, checkpoints: dict[str, Path]
) -> None:
    requests = make_requests(Random(5))
    expected = one_by_one(checkpoints["qwen3"], requests)
    config = EngineConfig(
        model=str(checkpoints["qwen3"]), device="cpu", dtype="float64", num_kv_blocks=64
    )
    assert run(config, requests)[0] == expected
    assert run(config, requests, load_runner=fault)[0] != expected


def test_a_pool_full_of_nan_changes_nothing(checkpoints: dict[str, Path]) -> None:
    requests = make_requests(Random(6))
    expected = one_by_one(checkpoints["mistral"], requests)

    def load_poisoned(
        config: EngineConfig,
        source: ModelSource,
        model_config: ModelConfig,
        on_progress: OnProgress | None,
    ) -> LoadedRunner:
        runner, num_kv_blocks = load_model_runner(config, source, model_config)
        assert isinstance(runner, TorchModelRunner)
        kv_cache = runner.kv_cache
        for pool in (*kv_cache.keys, *kv_cache.values):
            pool.fill_(torch.nan)
        return LoadedRunner(runner, num_kv_blocks, device_type="cpu")

    config = EngineConfig(
        model=str(checkpoints["mistral"]), device="cpu", dtype="float64", num_kv_blocks=64
    )
    assert run(config, requests, load_runner=load_poisoned)[0] == expected
