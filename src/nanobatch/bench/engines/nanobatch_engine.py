"""Measures nanobatch: token ids through `EngineCore`, without files and without text.

Answers are not turned into text, as with vLLM's `detokenize=False`; everything else is what
`nanobatch run` does.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from nanobatch import __version__
from nanobatch.bench.engine_settings import EngineSettings
from nanobatch.bench.engines.measured_engine import Counts, OnTokens, PreparedRun
from nanobatch.bench.workloads import Workload
from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine.core import EngineCore
from nanobatch.engine.factory import (
    LoadedRunner,
    LoadRunner,
    OnProgress,
    build_engine,
    loaded_runner,
)
from nanobatch.engine.run_requests import run_requests
from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.errors import EngineError
from nanobatch.models.source import ModelSource
from nanobatch.request import Request, RequestOutputs, RowIndex, SamplingParams


class TokenIdsOnly(Tokenizer):
    """A tokenizer that spells nothing: the text of every answer is empty."""

    def decode_all(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        """Return an empty text for each list of token ids."""
        return [""] * len(token_ids)


class NanobatchEngine:
    """nanobatch as a `MeasuredEngine`.

    Args:
        settings: Model and conditions.
        load_runner: Loads the model runner; None loads what the settings say.
    """

    version = __version__

    def __init__(self, settings: EngineSettings, *, load_runner: LoadRunner | None = None) -> None:
        if load_runner is None and settings.has_random_weights:
            load_runner = _load_random_runner
        options: dict[str, Any] = dict(settings.engine_fields)
        config = EngineConfig(
            model=str(settings.source.path),
            device=settings.device,
            dtype=settings.dtype,
            max_model_len=settings.max_model_len,
            seed=settings.seed,
            **options,
        )
        self._engine = build_engine(
            config,
            source=settings.source,
            tokenizer=TokenIdsOnly.load(settings.source),
            load_runner=load_runner,
        )

    def prepare(self, workload: Workload) -> PreparedRun:
        """Return a run that starts with an empty prefix cache."""
        self._engine.reset_prefix_cache()
        requests = [
            Request(
                row_index=RowIndex(row),
                input_ids=prompt,
                params=SamplingParams(
                    max_tokens=output_len, temperature=workload.temperature, ignore_eos=True
                ),
            )
            for row, (prompt, output_len) in enumerate(
                zip(workload.prompts, workload.output_lens, strict=True)
            )
        ]
        return partial(_run, self._engine, requests)

    def warm_up(self, workload: Workload) -> None:
        """Run the workload once: kernels are compiled and chosen for just its shapes."""
        self.prepare(workload)(None)

    def close(self) -> None:
        """Release the device."""
        self._engine.close()


def _run(engine: EngineCore, requests: list[Request], on_tokens: OnTokens | None) -> Counts:
    before = engine.stats()
    ended: list[RequestOutputs] = []
    for finished in run_requests(engine, requests):
        ended += finished
        if on_tokens is not None:
            on_tokens(engine.stats().num_output_tokens - before.num_output_tokens)
    outputs = sorted((output for (output,) in ended), key=lambda output: output.row_index)
    for output in outputs:
        if output.error is not None:
            raise EngineError(f"prompt {output.row_index}: {output.error.message}")
    return Counts(
        output_lens=[len(output.token_ids) for output in outputs],
        num_prefill_tokens=engine.num_prefill_tokens - before.num_prefill_tokens,
        num_cached_tokens=sum(output.num_cached_tokens for output in outputs),
    )


def _load_random_runner(
    config: EngineConfig,
    source: ModelSource,
    model_config: ModelConfig,
    on_progress: OnProgress | None,
) -> LoadedRunner:
    """Load the torch runner around weights that are drawn on its device; a `LoadRunner`."""
    from nanobatch.engine.model_runner import load_model_runner
    from nanobatch.models.random_weights import load_random_model

    loaded = load_model_runner(
        config, source, model_config, on_progress=on_progress, load_model=load_random_model
    )
    return loaded_runner(config, loaded)
