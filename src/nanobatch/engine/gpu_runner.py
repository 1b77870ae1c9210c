"""Runs steps on a GPU with fused kernels: prompts eagerly, decoding in the decode loop.

Owns the model, the KV pool, the sampling state and what every slot remembers between steps.
Decides nothing: what a step computes is the scheduler's. All work is queued on one stream, so
steps take effect in launch order and only `result()` waits.
"""

from collections.abc import Iterable

import numpy as np
import torch

from nanobatch.engine.decode_loop import DecodeLoop
from nanobatch.engine.gpu_sampler import GpuSampler
from nanobatch.engine.pending_results import PendingResults
from nanobatch.engine.sequence import SlotAssignment
from nanobatch.engine.step_batch import DecodeBatch, PrefillBatch, StepBatch
from nanobatch.engine.stop_tokens import StopTokens
from nanobatch.engine.torch_errors import LAUNCH_HINT, release_cached_memory, torch_errors
from nanobatch.errors import EngineError
from nanobatch.kernels.attention_backend import AttentionBackend
from nanobatch.kernels.gpu.decode_state import (
    NO_TOKEN,
    NUM_STOP_TOKENS,
    RowProgress,
    SlotState,
    end_step,
)
from nanobatch.kernels.gpu.prefill_step import PrefillPlanner
from nanobatch.kernels.gpu.slot_copy import copy_slots
from nanobatch.kernels.kv_cache import KVCache
from nanobatch.kernels.packed_upload import PackedUpload
from nanobatch.kernels.prefill_plan import PrefillChunks
from nanobatch.kernels.slot_copies import copying_first
from nanobatch.kernels.step_attention import ModelAttention
from nanobatch.models.decoder import DecoderModel

CAPTURE_HINT = "--enforce-eager does without them"
FIRST_TOKEN = np.zeros(1, dtype=np.int32)


class GpuModelRunner:
    """A `ModelRunner` over one GPU.

    Args:
        model: The loaded model, with Triton kernels.
        kv_cache: Its KV pool.
        sampler: Sampling state for every slot.
        backend: What computes the attention of prompts.
        max_num_seqs: Number of slots.
        max_model_len: Longest sequence in tokens.
        shares_keys: Whether rows with blocks in common attend to them together.
    """

    def __init__(
        self,
        model: DecoderModel,
        kv_cache: KVCache,
        *,
        sampler: GpuSampler,
        backend: AttentionBackend,
        max_num_seqs: int,
        max_model_len: int,
        shares_keys: bool = True,
    ) -> None:
        self._model: DecoderModel | None = model
        self._sampler = sampler
        self.max_num_seqs = max_num_seqs
        self._state = SlotState.allocate(max_num_seqs, device=model.device)
        self._stop_tokens = StopTokens(max_num_seqs, width=NUM_STOP_TOKENS)
        self._uploads = PackedUpload(model.device)
        self._planner = PrefillPlanner(
            backend,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.model_config.head_dim,
            dtype=model.dtype,
            block_size=kv_cache.block_size,
            upload=self._uploads,
            enable_shared_attention=shares_keys,
        )
        self._kv_cache: KVCache | None = kv_cache
        self._decode_loop: DecodeLoop | None = DecodeLoop(
            model,
            kv_cache,
            sampler=sampler,
            state=self._state,
            stop_tokens=self._stop_tokens,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            shares_keys=shares_keys,
        )
        self._num_computed_tokens = 0

    @property
    def num_computed_tokens(self) -> int:
        """Tokens put through the model since the start."""
        return self._num_computed_tokens

    def capture_graphs(self) -> None:
        """Record the decode steps as CUDA graphs; nothing may be in flight."""
        assert self._decode_loop is not None, "closed"
        with torch_errors("capturing CUDA graphs", hint=CAPTURE_HINT), torch.inference_mode():
            self._decode_loop.capture()

    def launch(self, batch: StepBatch) -> PendingResults:
        """Queue one batch on the device.

        Raises:
            EngineError: torch or CUDA failed; the run cannot go on.
        """
        if self._model is None or self._kv_cache is None or self._decode_loop is None:
            raise EngineError("the model runner is closed")
        step = f"a step of {batch.num_seqs} sequences and {batch.num_tokens} tokens"
        with torch_errors(step, hint=LAUNCH_HINT), torch.inference_mode():
            if isinstance(batch, DecodeBatch):
                results = self._decode_loop.launch(batch)
            else:
                results = self._prefill(self._model, self._kv_cache, batch)
        self._num_computed_tokens += batch.num_tokens
        return results

    def close(self) -> None:
        """Give model, graphs and KV pool back. Safe to call twice."""
        if self._decode_loop is not None:
            self._decode_loop.close()
        self._model = self._kv_cache = self._decode_loop = None
        release_cached_memory()

    def _prefill(
        self, model: DecoderModel, kv_cache: KVCache, batch: PrefillBatch
    ) -> PendingResults:
        self._assign(batch.slot_assignments)
        chunks = PrefillChunks(
            query_start_loc=batch.query_start_loc,
            seq_lens=batch.seq_lens,
            block_ids=batch.block_tables.block_ids,
            table_starts=batch.block_tables.starts[:-1],
        )
        attention = self._planner.plan(chunks, windows=model.windows)
        # Where no prompt ends, one token's hidden state is computed and not used.
        wanted = batch.logits_indices if len(batch.logits_indices) else FIRST_TOKEN
        input_ids, positions, slot_mapping, slot_copies, logits_indices = self._uploads.upload(
            batch.input_ids, batch.positions, batch.slot_mapping, batch.slot_copies, wanted
        )
        hidden = model(
            input_ids,
            positions,
            copying_first(
                ModelAttention(slot_mapping=slot_mapping, by_window=attention),
                slot_copies,
                copy_slots=copy_slots,
            ),
            kv_cache,
            logits_indices,
        )
        return self._sample(model, hidden, batch)

    def _assign(self, assignments: Iterable[SlotAssignment]) -> None:
        for assignment in assignments:
            self._sampler.assign(assignment)
            self._stop_tokens.assign(assignment.slot, assignment.eos_token_ids)

    def _sample(
        self, model: DecoderModel, hidden: torch.Tensor, batch: PrefillBatch
    ) -> PendingResults:
        """Sample the first token of the sequences whose prompt has ended, into their slots."""
        slots = batch.row_ids[batch.logits_rows]
        num_rows = len(slots)
        results = torch.empty(1, num_rows, dtype=torch.int32, device=model.device)
        if not num_rows:
            return PendingResults(results, None, num_rows=0, no_token=NO_TOKEN)
        positions, ones = batch.positions[batch.logits_indices] + 1, np.ones_like(slots)
        row_ids, next_positions, is_active, steps_left, stop_token_ids = self._uploads.upload(
            slots, positions, ones, ones, self._stop_tokens.of(slots)
        )
        sample = self._sampler.sample(
            model.compute_logits(hidden),
            self._sampler.upload(slots, num_padded_rows=num_rows),
            positions=next_positions,
            is_active=is_active,
        )
        self._state.is_done.index_fill_(0, row_ids.long(), 0)
        end_step(
            sample.token_ids,
            sample.is_nan,
            is_active=is_active,
            rows=RowProgress(
                row_ids=row_ids,
                positions=next_positions,
                steps_left=steps_left,
                stop_token_ids=stop_token_ids,
            ),
            state=self._state,
            results=results[0],
        )
        logprobs = None if sample.logprobs is None else sample.logprobs[None]
        return PendingResults(results, logprobs, num_rows=num_rows, no_token=NO_TOKEN)
