"""The torch runner under a whole engine: tiny real checkpoints on CPU, in float64."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanobatch.config import EngineConfig
from nanobatch.engine.core import EngineCore
from nanobatch.engine.factory import LoadedRunner, build_engine
from nanobatch.engine.model_runner import load_model_runner, resolve_device
from nanobatch.errors import ConfigError, EngineError
from nanobatch.models.source import read_model_config, resolve_model
from nanobatch.request import ErrorCode, FinishReason, Request, RequestOutput
from tests.checkpoints import write_checkpoint
from tests.engine.scripted_engine import answer_all, answer_samples, ids_request, is_idle

CONTEXT = 512
POISON = 77
"""The token whose embedding is NaN in the poisoned checkpoint."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def poisoned(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint, in which one token's embedding is NaN."""
    folder = copy_of(checkpoint, tmp_path_factory.mktemp("copies") / "poisoned")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def copy_of(checkpoint: Path, folder: Path) -> Path:
    return Path(shutil.copytree(checkpoint, folder))


def engine_on(model: Path, **options: Any) -> EngineCore:
    options = {"num_kv_blocks": 256, **options}
    return build_engine(EngineConfig(model=str(model), device="cpu", dtype="float64", **options))


def requests_without_poison() -> list[Request]:
    return [
        ids_request(
            row,
            [3 + (row * 31 + place * 7) % 70 for place in range(5 + row * 3)],
            max_tokens=6 + row % 5,
            temperature=0.0 if row % 2 else 0.8,
            ignore_eos=True,
            # Keeps generated tokens away from the poison; it is a ban for greedy rows, too.
            logit_bias=((POISON, -1e4),),
        )
        for row in range(12)
    ]


def token_ids_of(outputs: dict[int, RequestOutput], rows: Sequence[int]) -> list[tuple[int, ...]]:
    assert all(outputs[row].error is None for row in rows)
    return [outputs[row].token_ids for row in rows]


@pytest.mark.parametrize("num_kv_blocks", [12, 256])
@pytest.mark.parametrize("run_ahead", [0, 1])
def test_a_token_whose_weights_are_nan_costs_its_row_and_no_other(
    num_kv_blocks: int, run_ahead: int, checkpoint: Path, poisoned: Path
) -> None:
    good = requests_without_poison()
    expected = answer_all(engine_on(checkpoint), good)
    bad = [
        ids_request(100 + place, [*range(3, 3 + 6 * place), POISON, 9], max_tokens=5)
        for place in range(6)
    ]
    mixed = [request for pair in zip(good, bad, strict=False) for request in pair] + good[
        len(bad) :
    ]
    engine = engine_on(
        poisoned,
        num_kv_blocks=num_kv_blocks,
        run_ahead=run_ahead,
        max_num_seqs=6,
        max_num_batched_tokens=32,
    )
    actual = answer_all(engine, mixed)
    errors = [actual[request.row_index].error for request in bad]
    assert [error.code for error in errors if error] == [ErrorCode.NAN_LOGITS] * len(bad)
    rows = [int(request.row_index) for request in good]
    assert token_ids_of(actual, rows) == token_ids_of(expected, rows)


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize(("run_ahead", "num_decode_steps"), [(0, 1), (1, 1), (1, 4)])
@pytest.mark.parametrize("max_num_batched_tokens", [21, 512])
def test_rows_that_share_their_beginning_with_a_poisoned_one_get_what_they_get_alone(
    max_num_batched_tokens: int,
    run_ahead: int,
    num_decode_steps: int,
    num_samples: int,
    checkpoint: Path,
    poisoned: Path,
) -> None:
    """Attention makes NaN of clean positions too, in blocks that are in the cache by then."""
    beginning = [3 + place * 7 % 70 for place in range(20)]
    greedy: dict[str, Any] = {
        "max_tokens": 6,
        "temperature": 0.0,
        "ignore_eos": True,
        "logit_bias": ((POISON, -1e4),),
    }
    bad = ids_request(0, [*beginning, POISON], n=num_samples, **{**greedy, "temperature": 0.8})
    good = [ids_request(row, [*beginning, 80 + row], **greedy) for row in range(1, 5)]
    engine = engine_on(
        poisoned,
        run_ahead=run_ahead,
        num_decode_steps=num_decode_steps,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    outputs = answer_samples(engine, [bad, *good])
    assert [output.error is not None for output in outputs.pop(0)] == [True] * num_samples
    assert is_idle(engine)
    assert engine.stats().num_preemptions == 0
    rows = [int(request.row_index) for request in good]
    expected = token_ids_of(answer_all(engine_on(checkpoint), good), rows)
    assert token_ids_of({row: output for row, (output,) in outputs.items()}, rows) == expected
    # Nothing of what was spoiled is left for those who come later.
    assert token_ids_of(answer_all(engine, good), rows) == expected


def test_a_row_that_generates_the_token_ends_with_the_next(poisoned: Path) -> None:
    wanted = ((POISON, 1e4),)
    rows = [
        ids_request(0, [5, 6, 7], max_tokens=4, logit_bias=wanted, temperature=0.0),
        ids_request(1, [5, 6, 7], max_tokens=4, temperature=0.0, ignore_eos=True),
    ]
    outputs = answer_all(engine_on(poisoned), rows)
    assert outputs[0].error is not None
    assert outputs[0].error.code is ErrorCode.NAN_LOGITS
    assert outputs[0].num_completion_tokens == 1
    assert outputs[1].error is None
    assert outputs[1].num_completion_tokens == 4


def test_greedy_tokens_are_the_same_with_budgets_of_64_and_of_16384(checkpoint: Path) -> None:
    requests = [
        ids_request(
            row,
            [3 + (row * 17 + place * 5) % 300 for place in range(length)],
            max_tokens=8,
            temperature=0.0,
        )
        for row, length in enumerate([1, 63, 64, 65, 200, 400, 503])
    ]
    narrow = answer_all(engine_on(checkpoint, max_num_batched_tokens=64), requests)
    wide = answer_all(engine_on(checkpoint, max_num_batched_tokens=16_384), requests)
    rows = range(len(requests))
    assert token_ids_of(narrow, rows) == token_ids_of(wide, rows)


@pytest.mark.parametrize("block_size", [7, 16])
def test_a_row_runs_to_the_very_end_of_the_context(block_size: int, checkpoint: Path) -> None:
    engine = engine_on(checkpoint, block_size=block_size, num_kv_blocks=-(-CONTEXT // block_size))
    requests = [
        ids_request(length, [3 + place % 300 for place in range(length)], ignore_eos=True)
        for length in (CONTEXT - 1, CONTEXT - 2, CONTEXT - 17, CONTEXT)
    ]
    outputs = answer_all(engine, requests)
    for length in (CONTEXT - 1, CONTEXT - 2, CONTEXT - 17):
        assert outputs[length].num_completion_tokens == CONTEXT - length
        assert outputs[length].finish_reason is FinishReason.LENGTH
    error = outputs[CONTEXT].error
    assert error is not None
    assert error.code is ErrorCode.PROMPT_TOO_LONG


def test_every_token_put_through_the_model_is_counted(checkpoint: Path) -> None:
    source = resolve_model(str(checkpoint))
    config = EngineConfig(model=str(checkpoint), device="cpu", num_kv_blocks=64)
    runner, num_kv_blocks = load_model_runner(config, source, read_model_config(source))
    assert num_kv_blocks == 64
    engine = build_engine(config, load_runner=lambda *_: LoadedRunner(runner, num_kv_blocks, "cpu"))
    answer_all(engine, [ids_request(0, [5] * 20, max_tokens=4, ignore_eos=True)])
    assert runner.num_computed_tokens == 20 + 3
    assert engine.stats().num_prefill_tokens == 20


def test_logprobs_come_with_every_token(checkpoint: Path) -> None:
    requests = [ids_request(row, [5 + row, 6], max_tokens=5, ignore_eos=True) for row in range(3)]
    outputs = answer_all(engine_on(checkpoint, return_logprobs=True), requests)
    for output in outputs.values():
        assert output.logprobs is not None
        assert len(output.logprobs) == 5
        assert all(logprob <= 0.0 for logprob in output.logprobs)
    silent = answer_all(engine_on(checkpoint), requests)
    assert [output.logprobs for output in silent.values()] == [None] * 3


def test_min_tokens_keeps_the_end_away_whatever_ids_the_model_names(
    checkpoint: Path, tmp_path: Path
) -> None:
    """An end-of-sequence id outside the vocabulary must not reach the sampler's ban."""
    model = copy_of(checkpoint, tmp_path / "model")
    (model / "generation_config.json").write_text('{"eos_token_id": [1, 100000, -1]}')
    params = {"max_tokens": 6, "min_tokens": 5, "temperature": 0.0}
    requests = [ids_request(row, [5 + row, 6], **params) for row in range(4)]
    outputs = answer_all(engine_on(model), requests)
    assert all(output.num_completion_tokens >= 5 for output in outputs.values())
    assert all(output.error is None for output in outputs.values())


def test_a_pool_larger_than_any_memory_is_an_engine_error(checkpoint: Path) -> None:
    with pytest.raises(EngineError, match="loading the model failed") as raised:
        engine_on(checkpoint, num_kv_blocks=1 << 50)
    assert "\n" not in raised.value.message
    assert raised.value.hint is not None


def test_a_closed_runner_takes_no_step(checkpoint: Path) -> None:
    engine = engine_on(checkpoint)
    engine.add_requests([ids_request(0, [5], max_tokens=3)])
    engine.close()
    engine.close()
    engine.add_requests([ids_request(0, [5], max_tokens=3)])
    with pytest.raises(EngineError, match="closed"):
        engine.step()


def test_cuda_without_a_gpu_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="torch sees no GPU") as raised:
        resolve_device("cuda")
    assert raised.value.hint == "use --device cpu"
