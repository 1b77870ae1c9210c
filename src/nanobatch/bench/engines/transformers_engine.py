"""Measures transformers: `generate` over batches that are padded on the left.

A batch is as slow as its longest row, so rows of similar lengths are put together, which is the
best that padding allows. What a batch generates beyond a row's length does not count.
"""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from nanobatch.bench.engine_settings import EngineSettings
from nanobatch.bench.engines.measured_engine import Counts, OnTokens, PreparedRun
from nanobatch.bench.workloads import TokenIds, Workload

PAD_TOKEN_ID = 0


class TransformersEngine:
    """transformers as a `MeasuredEngine`."""

    def __init__(self, settings: EngineSettings) -> None:
        from nanobatch.engine.model_runner import resolve_device
        from nanobatch.models.loader import resolve_dtype

        transformers: Any = import_module("transformers")
        source = settings.source
        is_gguf = source.kind == "gguf"
        self.version: str = transformers.__version__
        self._device = resolve_device(settings.device)
        self._batch_size = settings.hf_batch_size
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(source.path.parent if is_gguf else source.path),
            dtype=resolve_dtype(settings.dtype, self._device),
            **({"gguf_file": source.path.name} if is_gguf else {}),
        )
        self._model.to(self._device).eval()
        # What a checkpoint says of sampling and stopping would be mixed into every call.
        self._model.generation_config = transformers.GenerationConfig(pad_token_id=PAD_TOKEN_ID)

    def prepare(self, workload: Workload) -> PreparedRun:
        """Return a run over batches of rows with similar lengths."""
        lens = [
            (output_len, len(prompt))
            for prompt, output_len in zip(workload.prompts, workload.output_lens, strict=True)
        ]
        rows = sorted(range(workload.num_prompts), key=lens.__getitem__, reverse=True)
        batches = [
            rows[start : start + self._batch_size]
            for start in range(0, len(rows), self._batch_size)
        ]
        return partial(self._run, workload, batches)

    def warm_up(self, workload: Workload) -> None:
        """Run one short batch: nothing is compiled for shapes."""
        prompts = workload.prompts[: self._batch_size]
        self._generate(prompts, num_tokens=4, temperature=workload.temperature)

    def close(self) -> None:
        """Release the model."""
        self._model = None

    def _run(
        self, workload: Workload, batches: Sequence[Sequence[int]], on_tokens: OnTokens | None
    ) -> Counts:
        output_lens = [0] * workload.num_prompts
        for rows in batches:
            wanted = [workload.output_lens[row] for row in rows]
            watch = None if on_tokens is None else _Watch(on_tokens, sum(output_lens), wanted)
            num_generated = self._generate(
                [workload.prompts[row] for row in rows],
                num_tokens=max(wanted),
                temperature=workload.temperature,
                watch=watch,
            )
            for row, output_len in zip(rows, wanted, strict=True):
                output_lens[row] = min(output_len, num_generated)
        return Counts(
            output_lens=output_lens,
            num_prefill_tokens=workload.num_prompt_tokens,
            num_cached_tokens=0,
        )

    def _generate(
        self,
        prompts: Sequence[TokenIds],
        *,
        num_tokens: int,
        temperature: float,
        watch: "_Watch | None" = None,
    ) -> int:
        """Continue prompts together; return the number of tokens that each got."""
        import torch

        longest = max(map(len, prompts))
        padded = [(PAD_TOKEN_ID,) * (longest - len(prompt)) + prompt for prompt in prompts]
        is_token = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            generated = self._model.generate(
                torch.tensor(padded, device=self._device),  # [num_rows, longest]
                attention_mask=torch.tensor(is_token, device=self._device),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                stopping_criteria=None if watch is None else [watch],
                **sampling,
            )
        return int(generated.cpu().shape[1]) - longest


class _Watch:
    """A stopping criterion that stops nothing and counts the tokens that are wanted."""

    def __init__(self, on_tokens: OnTokens, num_before: int, wanted: Sequence[int]) -> None:
        self._on_tokens = on_tokens
        self._num_before = num_before
        self._wanted = wanted
        self._num_steps = 0

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Report a step; return [num_rows] false."""
        import torch

        del scores, kwargs
        self._num_steps += 1
        self._on_tokens(self._num_before + sum(min(self._num_steps, n) for n in self._wanted))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
