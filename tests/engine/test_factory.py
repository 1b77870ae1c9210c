"""Putting an engine together: limits from the model's files, refusals before anything is loaded."""

import json
from pathlib import Path

import pytest

from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine.factory import (
    LoadedRunner,
    OnProgress,
    build_engine,
    eos_token_ids,
    load_tokenizer,
)
from nanobatch.errors import ConfigError, ModelError
from nanobatch.models.source import ModelSource, resolve_model
from nanobatch.request import FinishReason, RequestOutput
from tests.engine.scripted_engine import answer_all, ids_request, says, scripted_engine
from tests.null_model import EOS_TOKEN_ID, load_null_runner, write_null_model


def refuse_to_load(
    _config: EngineConfig,
    _source: ModelSource,
    _model_config: ModelConfig,
    _on_progress: OnProgress | None,
) -> LoadedRunner:
    raise AssertionError("weights were loaded")


def write_model(folder: Path, *, eos_in_generation_config: object) -> Path:
    write_null_model(folder)
    generation = {"eos_token_id": eos_in_generation_config}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def eos_ids(folder: Path) -> tuple[int, ...]:
    source = resolve_model(str(folder))
    tokenizer = load_tokenizer(EngineConfig(model=str(folder)), source)
    return eos_token_ids(source, tokenizer, vocab_size=320)


@pytest.mark.parametrize(
    ("eos_in_generation_config", "expected"),
    [(7, (7, 1)), ([7, 9, 1], (7, 9, 1)), ([7, 320, 151_643, -1], (7, 1))],
)
def test_every_end_of_sequence_id_in_the_vocabulary_counts(
    eos_in_generation_config: object, expected: tuple[int, ...], tmp_path: Path
) -> None:
    model = write_model(tmp_path, eos_in_generation_config=eos_in_generation_config)
    assert eos_ids(model) == expected


@pytest.mark.parametrize("eos_id", [7, 9, EOS_TOKEN_ID])
def test_each_of_a_models_end_of_sequence_ids_ends_a_row(eos_id: int, tmp_path: Path) -> None:
    model = write_model(tmp_path, eos_in_generation_config=[7, 9])

    def answer(**params: object) -> RequestOutput:
        engine = scripted_engine(model, says([50, 51, eos_id]))
        return answer_all(engine, [ids_request(0, (40,), max_tokens=5, **params)])[0]

    assert answer().token_ids == (50, 51, eos_id)
    assert (answer().finish_reason, answer().stop_reason) == (FinishReason.STOP, None)
    assert answer(ignore_eos=True).num_completion_tokens == 5


def test_a_context_beyond_the_models_is_refused_before_weights_are_loaded(tmp_path: Path) -> None:
    model = write_null_model(tmp_path, context=2048)
    with pytest.raises(ConfigError, match=r"max_model_len is 2,049; the model's context is 2,048"):
        build_engine(EngineConfig(model=str(model), max_model_len=2049), load_runner=refuse_to_load)


def test_a_damaged_tokenizer_is_refused_before_weights_are_loaded(tmp_path: Path) -> None:
    model = write_null_model(tmp_path)
    (model / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer"):
        build_engine(EngineConfig(model=str(model)), load_runner=refuse_to_load)


def test_limits_come_from_model_pool_and_configuration(tmp_path: Path) -> None:
    model = write_null_model(tmp_path, context=2048)
    config = EngineConfig(model=str(model), max_model_len=99, num_kv_blocks=10, block_size=8)
    limits = build_engine(config, load_runner=load_null_runner).limits
    assert (limits.max_model_len, limits.kv_capacity_tokens, limits.vocab_size) == (99, 80, 320)
    assert limits.eos_token_ids == (EOS_TOKEN_ID,)
    whole = build_engine(EngineConfig(model=str(model)), load_runner=load_null_runner).limits
    assert whole.max_model_len == 2048
