"""Measures what a device has left for the KV pool by running the worst step once, and takes it.

On CPU the pool takes a share of the free main memory: a step's activations are small beside it.
On CUDA the largest prefill and the largest sampling batch are really run (fp32 logits and the
sampler included), and what they needed at their peak is set aside.
"""

import gc

import numpy as np
import torch

from nanobatch.config import EngineConfig
from nanobatch.engine.memory import (
    CPU_MAX_POOL_BYTES,
    CPU_MEMORY_SHARE,
    MemoryBudget,
    available_main_memory_bytes,
    resolve_num_kv_blocks,
)
from nanobatch.engine.sampler import Sampler
from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.kv_cache import KVCache
from nanobatch.kernels.torch_attention import plan_model_attention
from nanobatch.models.decoder import DecoderModel


def measure_memory(
    model: DecoderModel,
    sampler: Sampler,
    config: EngineConfig,
    *,
    max_model_len: int,
    device: torch.device,
) -> MemoryBudget:
    """Return what the KV pool may take.

    Args:
        model: The loaded model.
        sampler: The sampler that will run beside it.
        config: Gives the budgets of a step and the share of memory to use.
        max_model_len: Longest sequence in tokens.
        device: Where the model is.
    """
    if device.type == "cpu":
        share = int(CPU_MEMORY_SHARE * available_main_memory_bytes())
        return MemoryBudget(
            available_bytes=min(share, CPU_MAX_POOL_BYTES),
            weight_bytes=model.num_weight_bytes,
            activation_bytes=0,
        )
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    pool_bytes = _run_worst_step(model, sampler, config, max_model_len=max_model_len, device=device)
    peak = torch.cuda.max_memory_allocated(device) - before - pool_bytes
    return cuda_budget(model, config, activation_bytes=peak)


def cuda_budget(
    model: DecoderModel, config: EngineConfig, *, activation_bytes: int
) -> MemoryBudget:
    """Return what a GPU's pool may take once what measuring took is given back.

    Args:
        model: The loaded model.
        config: Gives the share of memory to use.
        activation_bytes: What steps need beside weights and pool.
    """
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(model.device)
    usable = int(total * config.gpu_memory_utilization) - (total - free)
    return MemoryBudget(
        available_bytes=usable - activation_bytes,
        weight_bytes=model.num_weight_bytes,
        activation_bytes=activation_bytes,
    )


def allocate_kv_cache(
    model: DecoderModel, config: EngineConfig, *, budget: MemoryBudget
) -> KVCache:
    """Allocate as many KV blocks as the configuration asks for or the budget allows.

    Raises:
        EngineError: There is too little memory.
    """
    num_blocks = resolve_num_kv_blocks(
        config,
        model.model_config,
        max_num_seqs=config.step_sizes(model.device.type).max_num_seqs,
        bytes_per_element=model.dtype.itemsize,
        budget=budget,
    )
    return KVCache.allocate(
        model.kv_cache_specs(),
        num_blocks=num_blocks,
        block_size=config.block_size,
        device=model.device,
    )


def _run_worst_step(
    model: DecoderModel,
    sampler: Sampler,
    config: EngineConfig,
    *,
    max_model_len: int,
    device: torch.device,
) -> int:
    """Run a full prefill and sample every slot; return the bytes of the pool made for it."""
    sizes = config.step_sizes(device.type)
    num_tokens, block_size = sizes.max_num_batched_tokens, config.block_size
    lens = np.full(-(-num_tokens // max_model_len), max_model_len, dtype=np.int32)
    lens[-1] = num_tokens - max_model_len * (len(lens) - 1)
    starts = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
    blocks_per_seq = -(-int(lens.max()) // block_size)
    block_tables = np.arange(len(lens) * blocks_per_seq, dtype=np.int32).reshape(len(lens), -1)
    positions = np.concatenate([np.arange(length) for length in lens])
    seqs = np.repeat(np.arange(len(lens)), lens)
    kv_cache = KVCache.allocate(
        model.kv_cache_specs(), num_blocks=block_tables.size, block_size=block_size, device=device
    )
    metadata = AttentionMetadata.from_arrays(
        query_start_loc=starts,
        seq_lens=lens,
        block_tables=block_tables,
        slot_mapping=(seqs * blocks_per_seq * block_size + positions).astype(np.int64),
        device=device,
    )
    logits_indices = torch.arange(sizes.max_num_seqs, device=device) % num_tokens
    with torch.inference_mode():
        hidden = model(
            torch.zeros(num_tokens, dtype=torch.int32, device=device),
            torch.from_numpy(positions.astype(np.int32)).to(device),
            plan_model_attention(metadata, block_size=block_size, windows=model.windows),
            kv_cache,
            logits_indices,
        )
        slots = np.arange(sizes.max_num_seqs, dtype=np.int32)
        sampler.sample(model.compute_logits(hidden), slots, slots)
    torch.cuda.synchronize(device)
    return sum(tensor.nbytes for tensor in (*kv_cache.keys, *kv_cache.values))
