"""Engines around the GPU runner, on a GPU or, kernel by kernel, in Triton's interpreter."""

from pathlib import Path
from typing import Any

import torch

from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine.core import EngineCore
from nanobatch.engine.factory import LoadedRunner, OnProgress, build_engine
from nanobatch.engine.gpu_runner import GpuModelRunner
from nanobatch.engine.gpu_sampler import GpuSampler
from nanobatch.kernels.attention_backend import AttentionBackend
from nanobatch.kernels.gpu.triton_kernels import TritonKernels
from nanobatch.kernels.kv_cache import KVCache
from nanobatch.models.loader import load_model
from nanobatch.models.source import ModelSource

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONTEXT = 512


def gpu_engine(model: Path, *, dtype: torch.dtype = torch.float32, **options: Any) -> EngineCore:
    """Return an engine with fused kernels over a tiny checkpoint, its decode steps eager."""
    config = EngineConfig(model=str(model), **{"num_kv_blocks": 64, "max_num_seqs": 8, **options})

    def load(
        config: EngineConfig,
        source: ModelSource,
        model_config: ModelConfig,
        on_progress: OnProgress | None,
    ) -> LoadedRunner:
        loaded = load_model(
            source, model_config, dtype=dtype, device=DEVICE, kernels=TritonKernels()
        )
        assert config.num_kv_blocks is not None and config.max_num_seqs is not None
        kv_cache = KVCache.allocate(
            loaded.kv_cache_specs(),
            num_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            device=DEVICE,
        )
        for pool in (*kv_cache.keys, *kv_cache.values):
            pool.fill_(torch.nan)
        runner = GpuModelRunner(
            loaded,
            kv_cache,
            sampler=GpuSampler(
                max_num_seqs=config.max_num_seqs,
                vocab_size=model_config.vocab_size,
                device=DEVICE,
                return_logprobs=config.return_logprobs,
            ),
            backend=AttentionBackend.TRITON,
            max_num_seqs=config.max_num_seqs,
            max_model_len=CONTEXT,
            shares_keys=config.enable_shared_attention,
        )
        return LoadedRunner(runner, config.num_kv_blocks, device_type=DEVICE.type)

    return build_engine(config, load_runner=load)
