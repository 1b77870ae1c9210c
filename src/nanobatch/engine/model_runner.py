"""Runs steps with torch: arrays to the device, forward pass, sampling, tokens back.

Owns the model, the KV pool, the sampling state and the last token of every slot, so that a
step can be launched before the tokens of the one before it are known on the host. The same
code serves CPU and CUDA: on CUDA work is queued on one stream, so steps take effect in launch
order and only `result()` waits. Decides nothing: what a step computes is the scheduler's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine.batch import ForwardBatch, Int32Array, SampledTokens
from nanobatch.engine.device_memory import measure_memory
from nanobatch.engine.memory import resolve_num_kv_blocks
from nanobatch.engine.sampler import Sampler, SampleResult
from nanobatch.errors import ConfigError, EngineError
from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.kv_cache import KVCache
from nanobatch.kernels.torch_attention import plan_model_attention
from nanobatch.models.decoder import DecoderModel
from nanobatch.models.loader import load_model, resolve_dtype
from nanobatch.models.source import ModelSource

LAUNCH_HINT = (
    "finished rows are kept; run the same line again, "
    "with a lower --max-num-batched-tokens if memory ran out"
)
LOAD_HINT = "if memory ran out, choose a smaller model, --dtype or --kv-cache-memory"


class TorchModelRunner:
    """A `ModelRunner` over one device.

    Args:
        model: The loaded model.
        kv_cache: Its KV pool.
        sampler: Sampling state for every slot.
        max_num_seqs: Number of slots.
        device: Where all of it lives.
    """

    def __init__(
        self,
        model: DecoderModel,
        kv_cache: KVCache,
        *,
        sampler: Sampler,
        max_num_seqs: int,
        device: torch.device,
    ) -> None:
        self._model: DecoderModel | None = model
        self._kv_cache: KVCache | None = kv_cache
        self._sampler = sampler
        self._device = device
        self._last_tokens = torch.zeros(max_num_seqs, dtype=torch.int32, device=device)
        self._num_computed_tokens = 0

    @property
    def num_computed_tokens(self) -> int:
        """Tokens put through the model since the start."""
        return self._num_computed_tokens

    @property
    def kv_cache(self) -> KVCache:
        """The KV pool of a runner that is not closed."""
        assert self._kv_cache is not None, "closed"
        return self._kv_cache

    def launch(self, batch: ForwardBatch) -> "PendingSample":
        """Queue one step on the device.

        Raises:
            EngineError: torch or CUDA failed; the run cannot go on.
        """
        if self._model is None or self._kv_cache is None:
            raise EngineError("the model runner is closed")
        step = f"a step of {batch.num_seqs} sequences and {batch.num_tokens} tokens"
        with _torch_errors(step, hint=LAUNCH_HINT), torch.inference_mode():
            result = self._run(self._model, self._kv_cache, batch)
        self._num_computed_tokens += batch.num_tokens
        return PendingSample(result)

    def close(self) -> None:
        """Give model and KV pool back. Safe to call twice."""
        self._model = None
        self._kv_cache = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _run(self, model: DecoderModel, kv_cache: KVCache, batch: ForwardBatch) -> SampleResult:
        for assignment in batch.slot_assignments:
            self._sampler.assign(assignment)
        metadata = AttentionMetadata.from_arrays(
            query_start_loc=batch.query_start_loc,
            seq_lens=batch.seq_lens,
            block_tables=batch.block_tables,
            slot_mapping=batch.slot_mapping,
            device=self._device,
        )
        hidden = model(
            self._input_ids(batch),
            self._upload(batch.positions),
            plan_model_attention(metadata, block_size=kv_cache.block_size, windows=model.windows),
            kv_cache,
            self._upload(batch.logits_indices),
        )
        logits = model.compute_logits(hidden)  # [num_logits, vocab_size]
        slots = batch.row_ids[batch.logits_rows]  # [num_logits]
        positions = batch.positions[batch.logits_indices] + 1  # of the tokens being sampled
        result = self._sampler.sample(logits, slots, positions)
        self._last_tokens[self._upload(slots).long()] = result.token_ids.to(torch.int32)
        return result

    def _input_ids(self, batch: ForwardBatch) -> torch.Tensor:
        """Return the step's tokens [num_tokens], those still on the device filled in."""
        input_ids = self._upload(batch.input_ids)
        if len(batch.last_token_indices):
            slots = self._upload(batch.row_ids[batch.last_token_rows]).long()
            input_ids[self._upload(batch.last_token_indices).long()] = self._last_tokens[slots]
        return input_ids

    def _upload(self, array: Int32Array) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.clone() if self._device.type == "cpu" else tensor.to(self._device)


class PendingSample:
    """A queued step's sample, on its way to the host."""

    def __init__(self, result: SampleResult) -> None:
        self._result = result

    def result(self) -> SampledTokens:
        """Wait for the step and return what it sampled.

        Raises:
            EngineError: The step failed on the device.
        """
        logprobs = self._result.logprobs
        with _torch_errors("the device", hint="finished rows are kept; run the same line again"):
            return SampledTokens(
                token_ids=self._result.token_ids.to("cpu", torch.int32).numpy(),
                is_nan=self._result.is_nan.to("cpu").numpy(),
                logprobs=None if logprobs is None else logprobs.to("cpu", torch.float32).numpy(),
            )


def load_model_runner(
    config: EngineConfig,
    source: ModelSource,
    model_config: ModelConfig,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> tuple[TorchModelRunner, int]:
    """Load a model onto its device and size the KV pool.

    Returns:
        The runner and the number of KV blocks.

    Raises:
        ConfigError: The device is not there.
        ModelError: The model's files are damaged.
        EngineError: There is too little memory.
    """
    with _torch_errors("loading the model", hint=LOAD_HINT):
        return _load_model_runner(config, source, model_config, on_progress)


def _load_model_runner(
    config: EngineConfig,
    source: ModelSource,
    model_config: ModelConfig,
    on_progress: Callable[[float], None] | None,
) -> tuple[TorchModelRunner, int]:
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    model = load_model(source, model_config, dtype=dtype, device=device, on_progress=on_progress)
    sampler = Sampler(
        max_num_seqs=config.max_num_seqs,
        vocab_size=model_config.vocab_size,
        device=device,
        return_logprobs=config.return_logprobs,
    )
    num_kv_blocks = resolve_num_kv_blocks(
        config,
        model_config,
        bytes_per_element=dtype.itemsize,
        budget=measure_memory(
            model,
            sampler,
            config,
            max_model_len=config.max_model_len or model_config.max_position_embeddings,
            device=device,
        ),
    )
    kv_cache = KVCache.allocate(
        model.kv_cache_specs(),
        num_blocks=num_kv_blocks,
        block_size=config.block_size,
        device=device,
    )
    runner = TorchModelRunner(
        model, kv_cache, sampler=sampler, max_num_seqs=config.max_num_seqs, device=device
    )
    return runner, num_kv_blocks


def resolve_device(name: str) -> torch.device:
    """Return the device that a configuration asks for.

    Raises:
        ConfigError: CUDA is asked for and there is none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU", hint="use --device cpu")
    return torch.device(name)


@contextmanager
def _torch_errors(what: str, *, hint: str) -> Iterator[None]:
    """Turn what torch raises (running out of memory and CUDA errors too) into an EngineError."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise EngineError(f"{what} failed: {reason}", hint=hint) from error
