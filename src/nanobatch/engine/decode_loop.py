"""Runs decode steps on a GPU, several in a row, without waiting for the host.

    upload rows ─▶ ( begin step ▶ model ▶ logits ) ─▶ ( sample ▶ end step ) ─▶ … ─▶ tokens back
                      one CUDA graph a variant          launched behind it

What a chunk needs is uploaded in one piece, in batch order: slots, positions, block tables, the
attention plan, stop tokens. What outlives it, the last token of every slot and whether its
sequence has stopped, stays on the device (`SlotState`), where a prefill step writes it too.

**Who owns what is in flight.** Everything here happens on one stream in launch order. The static
arrays belong to the chunk that runs; the next chunk's upload is queued behind it. Pinned memory
comes from torch's caching host allocator, which hands a block out again only after the copies
from it are done. The results of a chunk are a tensor of its own.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from nanobatch.engine.decode_plans import AttentionShape, DecodePlans, PlannedStep, StepVariant
from nanobatch.engine.gpu_sampler import GpuSampler
from nanobatch.engine.pending_results import PendingResults, timed_event
from nanobatch.engine.row_buckets import bucket_of, row_buckets
from nanobatch.engine.step_batch import DecodeBatch, Int32Array
from nanobatch.engine.stop_tokens import StopTokens
from nanobatch.kernels.gpu.decode_attention import DecodeRows
from nanobatch.kernels.gpu.decode_state import (
    NO_TOKEN,
    NUM_STOP_TOKENS,
    RowProgress,
    SlotState,
    StepInputs,
    begin_step,
    end_step,
)
from nanobatch.kernels.kv_cache import KVCache
from nanobatch.kernels.static_arrays import StaticArrays
from nanobatch.kernels.step_attention import ModelAttention, StepAttention
from nanobatch.models.decoder import DecoderModel

PROCESSORS_WITHOUT_GPU = 1
"""Of Triton's interpreter."""

NUM_WARM_UPS = 2
"""Runs of a step before it is captured: kernels are compiled, libraries choose algorithms."""


class DecodeLoop:
    """Decode steps over one model and its KV pool.

    Args:
        model: With kernels that can be captured.
        kv_cache: Its pool.
        sampler: Shared with prefill steps.
        state: Last tokens and stopped slots, shared with prefill steps.
        stop_tokens: Of every slot.
        max_num_seqs: Slots, and the most rows of a step.
        max_model_len: Longest sequence in tokens.
        shares_keys: Whether rows with blocks in common attend to them together.
    """

    def __init__(
        self,
        model: DecoderModel,
        kv_cache: KVCache,
        *,
        sampler: GpuSampler,
        state: SlotState,
        stop_tokens: StopTokens,
        max_num_seqs: int,
        max_model_len: int,
        shares_keys: bool,
    ) -> None:
        device = state.last_tokens.device
        self._model, self._kv_cache, self._sampler = model, kv_cache, sampler
        self._state, self._stop_tokens = state, stop_tokens
        self.buckets = row_buckets(max_num_seqs)
        self._plans = DecodePlans(
            self.buckets,
            shape=_attention_shape(model, kv_cache, max_model_len=max_model_len),
            # What a window hides of a beginning is not the same for every row.
            shares_keys=shares_keys and not any(model.windows),
        )
        self._arrays = StaticArrays(
            {
                "row_ids": max_num_seqs,
                "positions": max_num_seqs,
                "steps_left": max_num_seqs,
                "block_starts": max_num_seqs,
                "stop_token_ids": max_num_seqs * NUM_STOP_TOKENS,
                "plan": self._plans.num_words,
                "block_ids": max_num_seqs * -(-max_model_len // kv_cache.block_size),
            },
            device=device,
        )
        self._rows = RowProgress(
            row_ids=self._arrays["row_ids"],
            positions=self._arrays["positions"],
            steps_left=self._arrays["steps_left"],
            stop_token_ids=self._arrays["stop_token_ids"],
        )
        self._inputs = StepInputs.allocate(max_num_seqs, device=device)
        self._logits = torch.empty(max_num_seqs, model.num_head_rows, device=device)
        self._attention = self._make_attention()
        self._steps = {variant: self._make_step(variant) for variant in self._plans.variants}
        self._graphs: dict[StepVariant, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def launch(self, batch: DecodeBatch) -> PendingResults:
        """Queue a chunk of steps and the copy of its results.

        Args:
            batch: At most as many rows as there are slots.
        """
        bucket = bucket_of(batch.num_seqs, self.buckets)
        started = timed_event() if self._inputs.input_ids.is_cuda else None
        variant, _, sharing = self._upload(batch, bucket)
        num_saved_kv_tokens = 0
        if sharing is not None:
            num_saved_kv_tokens = sharing.num_saved_tokens(batch.num_steps_of_rows)
        sampling = self._sampler.upload(batch.row_ids, num_padded_rows=bucket)
        inputs = self._inputs.first(bucket)
        results = inputs.input_ids.new_empty(batch.num_steps, bucket)
        logprobs = []
        for step in range(batch.num_steps):
            sample = self._sampler.sample(
                self._forward(variant),
                sampling,
                positions=inputs.next_positions,
                is_active=inputs.is_active,
            )
            end_step(
                sample.token_ids,
                sample.is_nan,
                is_active=inputs.is_active,
                rows=self._rows,
                state=self._state,
                results=results[step],
            )
            if sample.logprobs is not None:
                logprobs.append(sample.logprobs)
        return PendingResults(
            results,
            torch.stack(logprobs) if logprobs else None,
            num_rows=batch.num_seqs,
            no_token=NO_TOKEN,
            started=started,
            num_saved_kv_tokens=num_saved_kv_tokens,
        )

    def capture(self) -> None:
        """Record a graph of every variant of a step, the largest first: its memory serves all.

        Nothing may be in flight. Steps are run with padding only, which touches no sequence.
        """
        self._arrays.upload(
            {
                "row_ids": np.full(self.buckets[-1], self._state.padding_slot, dtype=np.int32),
                "steps_left": np.zeros(self.buckets[-1], dtype=np.int32),
            }
        )
        pool = torch.cuda.graph_pool_handle()
        for bucket in reversed(self.buckets):
            variants = [variant for variant in self._plans.variants if variant.bucket == bucket]
            for _ in range(NUM_WARM_UPS):
                self._steps[variants[0]]()
            for variant in variants[1:]:
                self._warm_up_attention(variant)
            torch.cuda.synchronize()
            for variant in variants:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    logits = self._steps[variant]()
                self._graphs[variant] = (graph, logits)
        for bucket in self.buckets:
            self._warm_up_sampler(bucket)

    def _warm_up_attention(self, variant: StepVariant) -> None:
        """Compile what tells a variant from the other ones of its bucket: its attention."""
        model, keys, values = self._model, self._kv_cache.keys, self._kv_cache.values
        query = keys[0].new_zeros(variant.bucket, model.num_heads, keys[0].shape[-1])
        for attention in self._attention[variant].values():
            attention.attend(
                query, query, query, key_cache=keys[0], value_cache=values[0], scale=1.0
            )

    def _warm_up_sampler(self, bucket: int) -> None:
        """Compile what samples a step of padding, so that no step of a run waits for that."""
        inputs, nobody = self._inputs.first(bucket), np.empty(0, dtype=np.int32)
        self._sampler.sample(
            self._logits[:bucket],
            self._sampler.upload(nobody, num_padded_rows=bucket),
            positions=inputs.next_positions,
            is_active=inputs.is_active,
        )

    def close(self) -> None:
        """Drop steps and graphs. Both refer to the loop: model and pool would outlive it."""
        self._steps.clear()
        self._graphs.clear()

    def _forward(self, variant: StepVariant) -> torch.Tensor:
        """Compute one step: logits [bucket, vocab_size], valid until the next step."""
        captured = self._graphs.get(variant)
        if captured is None:
            return self._steps[variant]()
        graph, logits = captured
        graph.replay()
        return logits

    def _make_attention(self) -> Mapping[StepVariant, Mapping[int | None, StepAttention]]:
        return self._plans.attention(
            self._arrays["plan"],
            DecodeRows(
                seq_lens=self._inputs.seq_lens,
                block_ids=self._arrays["block_ids"],
                block_starts=self._arrays["block_starts"],
            ),
            windows=self._model.windows,
        )

    def _make_step(self, variant: StepVariant) -> Callable[[], torch.Tensor]:
        """Return what computes one step of a bucket's rows."""
        inputs, by_window = self._inputs.first(variant.bucket), self._attention[variant]
        attention = ModelAttention(slot_mapping=inputs.slot_mapping, by_window=by_window)

        def compute() -> torch.Tensor:
            begin_step(
                self._rows,
                self._state,
                block_ids=self._arrays["block_ids"],
                block_starts=self._arrays["block_starts"],
                inputs=inputs,
                block_size=self._kv_cache.block_size,
            )
            hidden = self._model(
                inputs.input_ids, inputs.positions, attention, self._kv_cache, None
            )
            return self._model.compute_logits(hidden, out=self._logits[: len(hidden)])

        return compute

    def _upload(self, batch: DecodeBatch, bucket: int) -> PlannedStep:
        """Queue the copy of all that a chunk needs; return what it runs."""

        def padded(values: Int32Array, padding: int = 0) -> Int32Array:
            whole = np.full(bucket, padding, dtype=np.int32)
            whole[: len(values)] = values
            return whole

        final_seq_lens = padded(batch.positions + batch.num_steps_of_rows)
        planned = self._plans.plan(bucket, final_seq_lens, padded(batch.num_shared_blocks))
        self._arrays.upload(
            {
                "row_ids": padded(batch.row_ids, self._state.padding_slot),
                "positions": padded(batch.positions),
                "steps_left": padded(batch.num_steps_of_rows),
                "block_starts": padded(batch.block_tables.starts[:-1]),
                "stop_token_ids": self._stop_tokens.of(batch.row_ids),
                "plan": planned.words,
                "block_ids": batch.block_tables.block_ids,
            }
        )
        return planned


def _attention_shape(
    model: DecoderModel, kv_cache: KVCache, *, max_model_len: int
) -> AttentionShape:
    num_processors = PROCESSORS_WITHOUT_GPU
    if model.device.type == "cuda":
        num_processors = torch.cuda.get_device_properties(model.device).multi_processor_count
    return AttentionShape(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.model_config.head_dim,
        element_bytes=kv_cache.keys[0].element_size(),
        block_size=kv_cache.block_size,
        max_model_len=max_model_len,
        num_processors=num_processors,
    )
