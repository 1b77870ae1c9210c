"""The engines that run here: nanobatch on the null model and on random weights, transformers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nanobatch.bench.engine_settings import EngineSettings
from nanobatch.bench.engines.loading import load_engine
from nanobatch.bench.engines.measured_engine import MeasuredEngine
from nanobatch.bench.engines.nanobatch_engine import NanobatchEngine
from nanobatch.bench.measure import require_exact_lengths
from nanobatch.errors import EngineError
from nanobatch.models.source import resolve_model
from tests.bench.machines import small_workload
from tests.checkpoints import write_checkpoint
from tests.null_model import load_null_runner, write_null_model

MAX_MODEL_LEN = 512


def null_engine(folder: Path, **options: object) -> NanobatchEngine:
    settings = EngineSettings(
        engine="nanobatch",
        source=resolve_model(str(write_null_model(folder))),
        max_model_len=MAX_MODEL_LEN,
        options=options,
    )
    return NanobatchEngine(settings, load_runner=load_null_runner)


def test_nanobatch_generates_to_length_and_each_run_begins_with_an_empty_cache(
    tmp_path: Path,
) -> None:
    engine = null_engine(tmp_path)
    workload = small_workload().within_vocabulary(300)
    for _ in range(2):
        counts = engine.prepare(workload)(None)
        require_exact_lengths(workload, counts)
        assert counts.num_cached_tokens == 4 * 32
        assert counts.num_prefill_tokens == workload.num_prompt_tokens - 4 * 32
    engine.close()


def test_options_reach_the_engine(tmp_path: Path) -> None:
    engine = null_engine(tmp_path, enable_prefix_caching=False)
    counts = engine.prepare(small_workload().within_vocabulary(300))(None)
    assert counts.num_cached_tokens == 0


def test_a_watched_run_reports_tokens_as_they_come(tmp_path: Path) -> None:
    workload = small_workload().within_vocabulary(300)
    seen: list[int] = []
    null_engine(tmp_path).prepare(workload)(seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == workload.num_output_tokens
    assert len(seen) > 1


def test_a_prompt_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="prompt 0: input_ids holds token id"):
        null_engine(tmp_path).prepare(small_workload())(None)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_transformers_generates_rows_of_different_lengths_in_padded_batches(
    temperature: float, tmp_path: Path
) -> None:
    settings = EngineSettings(
        engine="transformers",
        source=resolve_model(str(write_checkpoint(tmp_path))),
        device="cpu",
        max_model_len=MAX_MODEL_LEN,
        hf_batch_size=4,
    )
    engine: MeasuredEngine = load_engine(settings, is_profiled=False)
    workload = replace(small_workload().within_vocabulary(300), temperature=temperature)
    engine.warm_up(workload)
    seen: list[int] = []
    watches: list[Callable[[int], None] | None] = [None, seen.append]
    for watch in watches:
        counts = engine.prepare(workload)(watch)
        require_exact_lengths(workload, counts)
        assert counts.num_prefill_tokens == workload.num_prompt_tokens
    assert seen[-1] == workload.num_output_tokens
    engine.close()
