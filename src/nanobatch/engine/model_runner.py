"""Loads a model onto its device, sizes the KV pool, and puts the right runner around them.

On a GPU that is `gpu_runner` with fused kernels; on CPUs, in float64 and where the torch backend
is asked for, `torch_runner`.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine.device_memory import allocate_kv_cache, measure_memory
from nanobatch.engine.sampler import Sampler
from nanobatch.engine.step_batch import SizedModelRunner
from nanobatch.engine.torch_errors import LOAD_HINT, torch_errors
from nanobatch.engine.torch_runner import TorchModelRunner
from nanobatch.errors import ConfigError
from nanobatch.kernels.attention_backend import AttentionBackend, resolve_attention_backend
from nanobatch.kernels.compiled.kept_rows import keeper_of
from nanobatch.kernels.compiled.kernels import cpu_kernels
from nanobatch.kernels.compiled.programs import LayerSizes
from nanobatch.kernels.kept_keys import KeepKeys
from nanobatch.kernels.kernel_set import KernelSet
from nanobatch.models.decoder import DecoderModel
from nanobatch.models.loader import load_model, resolve_dtype
from nanobatch.models.source import ModelSource

log = logging.getLogger(__name__)

OnProgress = Callable[[float], None]


class LoadModel(Protocol):
    """Builds a model and fills in its weights: `loader.load_model`, or a stand-in for benches."""

    def __call__(
        self,
        source: ModelSource,
        model_config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        kernels: KernelSet | None = None,
        on_progress: OnProgress | None = None,
    ) -> DecoderModel:
        """Return the loaded model."""
        ...


def load_model_runner(
    config: EngineConfig,
    source: ModelSource,
    model_config: ModelConfig,
    *,
    on_progress: OnProgress | None = None,
    load_model: LoadModel = load_model,
) -> tuple[SizedModelRunner, int]:
    """Load a model onto its device and size the KV pool.

    Args:
        config: How to run it.
        source: Where its weights are.
        model_config: What it is.
        on_progress: Called with the share of weights loaded, 0 to 1.
        load_model: Builds the model.

    Returns:
        The runner and the number of KV blocks.

    Raises:
        ConfigError: The device or the attention backend is not there.
        ModelError: The model's files are damaged.
        EngineError: There is too little memory.
    """
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    backend = resolve_attention_backend(
        config.attention_backend, device, dtype=dtype, head_dim=model_config.head_dim
    )
    if device.type != "cpu":
        log.info("attention of prompts: %s", backend.description)
    kernels: KernelSet | None = None
    if device.type == "cpu" and not config.enforce_eager:
        on_wait = None if on_progress is None else partial(on_progress, 0.0)
        kernels = cpu_kernels(LayerSizes.of(model_config, dtype), on_wait=on_wait)
    with torch_errors("loading the model", hint=LOAD_HINT):
        model = load_model(
            source,
            model_config,
            dtype=dtype,
            device=device,
            kernels=kernels,
            on_progress=on_progress,
        )
        if backend is AttentionBackend.TORCH:
            return _torch_runner(model, config, keep_keys=keeper_of(kernels))
        from nanobatch.engine.gpu_loading import load_gpu_runner

        return load_gpu_runner(model, config, backend)


def _torch_runner(
    model: DecoderModel, config: EngineConfig, *, keep_keys: KeepKeys | None
) -> tuple[TorchModelRunner, int]:
    model_config, device = model.model_config, model.device
    max_num_seqs = config.step_sizes(device.type).max_num_seqs
    sampler = Sampler(
        max_num_seqs=max_num_seqs,
        vocab_size=model_config.vocab_size,
        device=device,
        return_logprobs=config.return_logprobs,
    )
    budget = measure_memory(
        model,
        sampler,
        config,
        max_model_len=config.max_model_len or model_config.max_position_embeddings,
        device=device,
    )
    kv_cache = allocate_kv_cache(model, config, budget=budget)
    runner = TorchModelRunner(
        model,
        kv_cache,
        sampler=sampler,
        max_num_seqs=max_num_seqs,
        device=device,
        shares_attention=config.enable_shared_attention,
        keep_keys=keep_keys,
    )
    return runner, kv_cache.num_blocks


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
