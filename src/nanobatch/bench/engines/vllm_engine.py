"""Measures vLLM through its `LLM` class, with its own defaults unless options say otherwise.

Prompts and answers are token ids; no tokenizer is loaded, nothing is turned into text.
"""

import os
import time
from functools import partial
from typing import Any

from nanobatch.bench.engine_settings import EngineSettings
from nanobatch.bench.engines.measured_engine import Counts, OnTokens, PreparedRun
from nanobatch.bench.workloads import Workload
from nanobatch.errors import EngineError

NUM_RESETS = 50
RESET_INTERVAL_S = 0.1
"""How often, and how far apart, an empty prefix cache is asked for: steps that are still on their
way when the last token is there hold blocks for a moment."""

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
        is_profiled: Kernels will be watched; the engine then has to live in this process, which
            costs it some speed.
    """

    def __init__(self, settings: EngineSettings, *, is_profiled: bool) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # a measurement reports to nobody else
        if is_profiled:
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
        """Return a run that starts with an empty prefix cache.

        Raises:
            EngineError: vLLM does not empty it.
        """
        from vllm import SamplingParams

        self._reset_prefix_cache()
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in workload.prompts]
        params = [
            SamplingParams(
                temperature=workload.temperature,
                max_tokens=output_len,
                ignore_eos=True,
                detokenize=False,
            )
            for output_len in workload.output_lens
        ]
        return partial(self._run, prompts, params)

    def warm_up(self, workload: Workload) -> None:
        """Run the workload once."""
        self.prepare(workload)(None)

    def close(self) -> None:
        """Leave the device to the end of the process, which is near."""
        self._llm = None

    def _reset_prefix_cache(self) -> None:
        for _ in range(NUM_RESETS):
            if self._llm.reset_prefix_cache():
                return
            time.sleep(RESET_INTERVAL_S)
        raise EngineError("vLLM keeps its prefix cache between runs; times would not be comparable")

    def _run(
        self, prompts: list[dict[str, Any]], params: list[Any], on_tokens: OnTokens | None
    ) -> Counts:
        if on_tokens is None:
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
            output_lens = [len(output.outputs[0].token_ids) for output in outputs]
        else:
            outputs, output_lens = self._run_watched(prompts, params, on_tokens)
        # Of a row that was preempted this is what its first admission found.
        num_cached = sum(output.num_cached_tokens or 0 for output in outputs)
        num_prompt_tokens = sum(len(prompt["prompt_token_ids"]) for prompt in prompts)
        return Counts(
            output_lens=output_lens,
            num_prefill_tokens=num_prompt_tokens - num_cached,
            num_cached_tokens=num_cached,
        )

    def _run_watched(
        self, prompts: list[dict[str, Any]], params: list[Any], on_tokens: OnTokens
    ) -> tuple[list[Any], list[int]]:
        """Turn the engine's crank by hand; each step gives every running row's new tokens.

        Returns:
            An output of each row, and the number of tokens that each got.
        """
        from vllm.sampling_params import RequestOutputKind

        engine = self._llm.llm_engine
        for row, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
            each.output_kind = RequestOutputKind.DELTA
            engine.add_request(str(row), prompt, each)
        latest: dict[int, Any] = {}
        output_lens = [0] * len(prompts)
        while engine.has_unfinished_requests():
            for output in engine.step():
                row = int(output.request_id.partition("-")[0])
                output_lens[row] += len(output.outputs[0].token_ids)
                latest[row] = output
            on_tokens(sum(output_lens))
        return [latest[row] for row in range(len(prompts))], output_lens
