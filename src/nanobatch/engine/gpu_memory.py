"""Measures what a GPU has left for the KV pool by running the worst steps once.

The largest prefill, with a first token for as many sequences as there are slots, and the largest
decode step are really run, over a pool just large enough for them. What a graph of that decode
step will hold is what the step needs at its peak, since the smaller ones share its memory.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from nanobatch.config import MIB, EngineConfig
from nanobatch.engine.decode_plans import MOST_VARIANTS
from nanobatch.engine.device_memory import cuda_budget
from nanobatch.engine.gpu_runner import GpuModelRunner
from nanobatch.engine.memory import MemoryBudget
from nanobatch.engine.row_buckets import row_buckets
from nanobatch.engine.step_batch import BlockTables, DecodeBatch, PrefillBatch, StepBatch
from nanobatch.kernels.kv_cache import KVCache
from nanobatch.models.decoder import DecoderModel

GRAPH_BYTES = 4 * MIB
"""What the driver keeps of a graph of some hundred kernels, beside the tensors in it."""


def measure_gpu_memory(
    make_runner: Callable[[KVCache], GpuModelRunner],
    model: DecoderModel,
    config: EngineConfig,
    *,
    num_late_bytes: int,
) -> MemoryBudget:
    """Return what the KV pool may take.

    Args:
        make_runner: Builds the runner over a pool.
        model: The loaded model.
        config: Gives the sizes of steps and the share of memory to use.
        num_late_bytes: What the measured steps do not take, but some later one may.
    """
    device = model.device
    sizes = config.step_sizes(device.type)
    prefill = worst_prefill(
        max_num_seqs=sizes.max_num_seqs,
        max_num_tokens=sizes.max_num_batched_tokens,
        max_model_len=config.max_model_len or model.model_config.max_position_embeddings,
        block_size=config.block_size,
    )
    kv_cache = KVCache.allocate(
        model.kv_cache_specs(),
        num_blocks=len(prefill.block_tables.block_ids),
        block_size=config.block_size,
        device=device,
    )
    before = torch.cuda.memory_allocated(device)
    runner = make_runner(kv_cache)
    activation_bytes = num_late_bytes + torch.cuda.memory_allocated(device) - before
    activation_bytes += _step_bytes(runner, (prefill, worst_decode(sizes.max_num_seqs)), device)
    runner.close()
    del runner, kv_cache
    if not config.enforce_eager:
        activation_bytes += GRAPH_BYTES * MOST_VARIANTS * len(row_buckets(sizes.max_num_seqs))
    return cuda_budget(model, config, activation_bytes=activation_bytes)


def worst_prefill(
    *, max_num_seqs: int, max_num_tokens: int, max_model_len: int, block_size: int
) -> PrefillBatch:
    """Return a step of as many tokens as fit one, in which every sequence gets its first token.

    Args:
        max_num_seqs: Most sequences.
        max_num_tokens: Most tokens.
        max_model_len: Most tokens of a sequence.
        block_size: Tokens per KV block.
    """
    num_seqs = min(max_num_seqs, max_num_tokens)
    num_tokens = min(max_num_tokens, num_seqs * max_model_len)
    query_lens = np.full(num_seqs, num_tokens // num_seqs, dtype=np.int32)
    query_lens[: num_tokens % num_seqs] += 1
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    num_blocks = -(-query_lens // block_size)
    table_starts = np.concatenate([[0], np.cumsum(num_blocks)]).astype(np.int32)
    positions = np.arange(num_tokens, dtype=np.int32) - np.repeat(starts[:-1], query_lens)
    first_slots = table_starts[:-1].astype(np.int64) * block_size
    return PrefillBatch(
        input_ids=np.zeros(num_tokens, dtype=np.int32),
        positions=positions,
        slot_mapping=np.repeat(first_slots, query_lens) + positions,
        query_start_loc=starts,
        seq_lens=query_lens,
        block_tables=BlockTables(
            block_ids=np.arange(table_starts[-1], dtype=np.int32), starts=table_starts
        ),
        row_ids=np.arange(num_seqs, dtype=np.int32),
        logits_indices=starts[1:] - 1,
        logits_rows=np.arange(num_seqs, dtype=np.int32),
        slot_assignments=(),
        # One is enough for its kernel to be compiled now; what is copied does not matter.
        slot_copies=np.array([[0], [table_starts[-1] * block_size - 1]], dtype=np.int64),
    )


def worst_decode(max_num_seqs: int) -> DecodeBatch:
    """Return a step of that many rows; what it takes does not depend on their lengths."""
    return DecodeBatch(
        row_ids=np.arange(max_num_seqs, dtype=np.int32),
        positions=np.zeros(max_num_seqs, dtype=np.int32),
        num_steps_of_rows=np.ones(max_num_seqs, dtype=np.int32),
        num_steps=1,
        block_tables=BlockTables(
            block_ids=np.zeros(max_num_seqs, dtype=np.int32),
            starts=np.arange(max_num_seqs + 1, dtype=np.int32),
        ),
        num_shared_blocks=np.zeros(max_num_seqs, dtype=np.int32),
    )


def _step_bytes(runner: GpuModelRunner, batches: Iterable[StepBatch], device: torch.device) -> int:
    """Return what steps need at their peaks, one beside the other."""

    def peak_bytes(batch: StepBatch) -> int:
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        runner.launch(batch).result()
        return torch.cuda.max_memory_allocated(device) - before

    return sum(map(peak_bytes, batches))
