"""Puts the GPU runner around a loaded model: sampler, KV pool, CUDA graphs."""

import logging
import time
from dataclasses import replace

from nanobatch.config import EngineConfig
from nanobatch.engine.device_memory import allocate_kv_cache, cuda_budget
from nanobatch.engine.gpu_memory import measure_gpu_memory
from nanobatch.engine.gpu_runner import GpuModelRunner
from nanobatch.engine.gpu_sampler import GpuSampler
from nanobatch.kernels.attention_backend import AttentionBackend
from nanobatch.kernels.kv_cache import KVCache
from nanobatch.models.decoder import DecoderModel

log = logging.getLogger(__name__)


def load_gpu_runner(
    model: DecoderModel, config: EngineConfig, backend: AttentionBackend
) -> tuple[GpuModelRunner, int]:
    """Size the KV pool and capture the decode steps.

    Args:
        model: The loaded model, on a GPU.
        config: How to run it.
        backend: What computes the attention of prompts.

    Returns:
        The runner and the number of KV blocks.

    Raises:
        EngineError: There is too little memory.
    """
    model_config = model.model_config
    max_model_len = config.max_model_len or model_config.max_position_embeddings
    free_bytes = cuda_budget(model, config, activation_bytes=0).available_bytes
    max_num_seqs = config.step_sizes(model.device.type, free_bytes=free_bytes).max_num_seqs
    config = replace(config, max_num_seqs=max_num_seqs)
    sampler = GpuSampler(
        max_num_seqs=max_num_seqs,
        vocab_size=model_config.vocab_size,
        device=model.device,
        return_logprobs=config.return_logprobs,
    )

    def make_runner(kv_cache: KVCache) -> GpuModelRunner:
        return GpuModelRunner(
            model,
            kv_cache,
            sampler=sampler,
            backend=backend,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            shares_keys=config.enable_shared_attention,
        )

    budget = measure_gpu_memory(make_runner, model, config, num_late_bytes=sampler.num_late_bytes)
    kv_cache = allocate_kv_cache(model, config, budget=budget)
    runner = make_runner(kv_cache)
    if not config.enforce_eager:
        started_s = time.perf_counter()
        runner.capture_graphs()
        log.info("captured CUDA graphs in %.1f s", time.perf_counter() - started_s)
    return runner, kv_cache.num_blocks
