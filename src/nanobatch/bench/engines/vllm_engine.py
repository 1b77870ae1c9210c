"""Measures vLLM through its `LLM` class, with its own defaults unless options say otherwise.

Prompts and answers are token ids; no tokenizer is loaded, nothing is turned into text.
"""

import os
from functools import partial
from typing import Any

from nanobatch.bench.engine_settings import EngineSettings
from nanobatch.bench.engines.measured_engine import Counts, OnTokens, PreparedRun
from nanobatch.bench.workloads import Workload

SHARED_OPTIONS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "enable_prefix_caching",
    "enforce_eager",
    "block_size",
)
"""Fields of our `EngineConfig` that vLLM has by the same name and meaning."""


class VllmEngine:
    """vLLM as a `MeasuredEngine`.

    Args:
        settings: Model and conditions.
        is_observed: Runs will be watched; the engine then has to live in this process.
    """

    def __init__(self, settings: EngineSettings, *, is_observed: bool) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if is_observed:
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import vllm

        self.version: str = vllm.__version__
        options = {
            "dtype": settings.dtype,
            "max_model_len": settings.max_model_len,
            "seed": settings.seed,
            "skip_tokenizer_init": True,
            **{name: settings.options[name] for name in SHARED_OPTIONS if name in settings.options},
            **settings.vllm_options,
        }
        self._llm: Any = vllm.LLM(str(settings.source.path), **options)

    def prepare(self, workload: Workload) -> PreparedRun:
        """Return a run that starts with an empty prefix cache."""
        self._llm.reset_prefix_cache()
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in workload.prompts]
        return partial(self._run, prompts, workload)

    def warm_up(self, workload: Workload) -> None:
        """Run the workload once."""
        self.prepare(workload)(None)

    def close(self) -> None:
        """Leave the device to the end of the process, which is near."""
        self._llm = None

    def _run(
        self, prompts: list[dict[str, Any]], workload: Workload, on_tokens: OnTokens | None
    ) -> Counts:
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=workload.temperature,
                max_tokens=output_len,
                ignore_eos=True,
                detokenize=False,
            )
            for output_len in workload.output_lens
        ]
        if on_tokens is None:
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
        else:
            outputs = self._run_watched(prompts, params, on_tokens)
        num_cached = sum(output.num_cached_tokens or 0 for output in outputs)
        return Counts(
            output_lens=[len(output.outputs[0].token_ids) for output in outputs],
            num_prefill_tokens=workload.num_prompt_tokens - num_cached,
            num_cached_tokens=num_cached,
        )

    def _run_watched(
        self, prompts: list[dict[str, Any]], params: list[Any], on_tokens: OnTokens
    ) -> list[Any]:
        """Turn the engine's crank by hand; each step gives every running row's tokens so far."""
        from vllm.sampling_params import RequestOutputKind

        engine = self._llm.llm_engine
        for row, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
            each.output_kind = RequestOutputKind.CUMULATIVE
            engine.add_request(str(row), prompt, each)
        latest: dict[int, Any] = {}
        num_tokens = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                row = int(output.request_id.partition("-")[0])
                before = latest.get(row)
                num_tokens += len(output.outputs[0].token_ids)
                num_tokens -= 0 if before is None else len(before.outputs[0].token_ids)
                latest[row] = output
            on_tokens(num_tokens)
        return [latest[row] for row in range(len(prompts))]
