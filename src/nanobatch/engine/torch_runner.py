"""Runs steps in plain torch: arrays to the device, forward pass, sampling, tokens back.

Owns the model, the KV pool, the sampling state and the last token of every slot, so that a
step can be launched before the tokens of the one before it are known on the host. This is what
CPUs run, and the reference on a GPU, where it also serves float64. Decides nothing: what a step
computes is the scheduler's.
"""

import numpy as np
import numpy.typing as npt
import torch

from nanobatch.engine.sampler import Sampler, SampleResult
from nanobatch.engine.step_batch import (
    BlockTables,
    DecodeBatch,
    Int32Array,
    Int64Array,
    PrefillBatch,
    SampledTokens,
    StepBatch,
)
from nanobatch.engine.torch_errors import (
    DEVICE_HINT,
    LAUNCH_HINT,
    release_cached_memory,
    torch_errors,
)
from nanobatch.errors import EngineError
from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.best_tokens import BestTokenSearch
from nanobatch.kernels.kept_keys import DecodePlanner, KeepKeys
from nanobatch.kernels.kv_cache import KVCache, copy_slots
from nanobatch.kernels.slot_copies import copying_first
from nanobatch.kernels.torch_attention import plan_model_attention
from nanobatch.models.decoder import DecoderModel

RowArray = npt.NDArray[np.intp]


class TorchModelRunner:
    """A `ModelRunner` over one device.

    Args:
        model: The loaded model.
        kv_cache: Its KV pool.
        sampler: Sampling state for every slot.
        max_num_seqs: Number of slots.
        device: Where all of it lives.
        shares_attention: Read keys that several rows share once for all of them.
        keep_keys: What keeps the keys of decoding rows (see `DecodePlanner`).
    """

    def __init__(
        self,
        model: DecoderModel,
        kv_cache: KVCache,
        *,
        sampler: Sampler,
        max_num_seqs: int,
        device: torch.device,
        shares_attention: bool = True,
        keep_keys: KeepKeys | None = None,
    ) -> None:
        self._model: DecoderModel | None = model
        self._kv_cache: KVCache | None = kv_cache
        self._sampler = sampler
        self._device = device
        self._shares_attention = shares_attention
        self._decode_planner = DecodePlanner(
            kv_cache, windows=model.windows, shares_keys=shares_attention, keep_keys=keep_keys
        )
        self.max_num_seqs = max_num_seqs
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

    def launch(self, batch: StepBatch) -> "PendingSample":
        """Queue one batch on the device.

        Raises:
            EngineError: torch or CUDA failed; the run cannot go on.
        """
        if self._model is None or self._kv_cache is None:
            raise EngineError("the model runner is closed")
        step = f"a step of {batch.num_seqs} sequences and {batch.num_tokens} tokens"
        with torch_errors(step, hint=LAUNCH_HINT), torch.inference_mode():
            if isinstance(batch, DecodeBatch):
                steps, num_saved_keys = self._decode(self._model, self._kv_cache, batch)
            else:
                result = self._prefill(self._model, self._kv_cache, batch)
                steps, num_saved_keys = [(np.arange(len(batch.logits_rows)), result)], 0
        self._num_computed_tokens += batch.num_tokens
        num_rows = batch.num_seqs if isinstance(batch, DecodeBatch) else len(batch.logits_rows)
        return PendingSample(steps, num_rows=num_rows, num_saved_kv_tokens=num_saved_keys)

    def close(self) -> None:
        """Give model and KV pool back. Safe to call twice."""
        self._model = None
        self._kv_cache = None
        self._decode_planner.forget()
        if self._device.type == "cuda":
            release_cached_memory()

    def _prefill(self, model: DecoderModel, kv_cache: KVCache, batch: PrefillBatch) -> SampleResult:
        self._decode_planner.forget()
        for assignment in batch.slot_assignments:
            self._sampler.assign(assignment)
        metadata = AttentionMetadata.from_arrays(
            query_start_loc=batch.query_start_loc,
            seq_lens=batch.seq_lens,
            block_tables=_dense_block_tables(batch.block_tables),
            slot_mapping=batch.slot_mapping,
            device=self._device,
        )
        attention = plan_model_attention(
            metadata,
            block_size=kv_cache.block_size,
            windows=model.windows,
            shares_keys=self._shares_attention,
        )
        hidden = model(
            self._upload(batch.input_ids),
            self._upload(batch.positions),
            copying_first(attention, self._upload(batch.slot_copies), copy_slots=copy_slots),
            kv_cache,
            self._upload(batch.logits_indices),
        )
        slots = batch.row_ids[batch.logits_rows]  # [num_logits]
        positions = batch.positions[batch.logits_indices] + 1  # of the tokens being sampled
        return self._sample(model, hidden, slots, positions)

    def _decode(
        self, model: DecoderModel, kv_cache: KVCache, batch: DecodeBatch
    ) -> tuple[list[tuple[RowArray, SampleResult]], int]:
        """Run the steps one after the other.

        Returns:
            The rows of each and what they sampled, and the keys that were not read again in them.
        """
        block_tables = _dense_block_tables(batch.block_tables)
        block_size = kv_cache.block_size
        steps, num_saved_keys = [], 0
        for step in range(batch.num_steps):
            rows = np.flatnonzero(batch.num_steps_of_rows > step)
            slots, positions = batch.row_ids[rows], batch.positions[rows] + step
            block_ids = block_tables[rows, positions // block_size].astype(np.int64)
            metadata = AttentionMetadata.from_arrays(
                query_start_loc=np.arange(len(rows) + 1, dtype=np.int32),
                seq_lens=positions + 1,
                block_tables=block_tables[rows],
                slot_mapping=block_ids * block_size + positions % block_size,
                device=self._device,
            )
            hidden = model(
                self._last_tokens[self._upload(slots).long()],
                self._upload(positions),
                self._decode_planner.plan(metadata),
                kv_cache,
                torch.arange(len(rows), device=self._device),
            )
            steps.append((rows, self._sample(model, hidden, slots, positions + 1)))
            num_saved_keys += self._decode_planner.num_saved_keys
        return steps, num_saved_keys

    def _sample(
        self, model: DecoderModel, hidden: torch.Tensor, slots: Int32Array, positions: Int32Array
    ) -> SampleResult:
        result = self._sampled(model, hidden, slots, positions)
        self._last_tokens[self._upload(slots).long()] = result.token_ids.to(torch.int32)
        return result

    def _sampled(
        self, model: DecoderModel, hidden: torch.Tensor, slots: Int32Array, positions: Int32Array
    ) -> SampleResult:
        """Sample each row, by the full logits only where the row needs them."""
        search = model.best_token_search
        takes_best = self._sampler.takes_best(slots, positions)
        if search is None or not takes_best.any():
            return self._sampler.sample(model.compute_logits(hidden), slots, positions)
        if takes_best.all():
            return _best_sample(search, hidden)
        best, others = np.flatnonzero(takes_best), np.flatnonzero(~takes_best)
        logits = model.compute_logits(hidden[torch.from_numpy(others)])
        parts = (
            _best_sample(search, hidden[torch.from_numpy(best)]),
            self._sampler.sample(logits, slots[others], positions[others]),
        )
        order = torch.from_numpy(np.argsort(np.concatenate((best, others))))
        return SampleResult(
            token_ids=torch.cat([part.token_ids for part in parts])[order],
            is_nan=torch.cat([part.is_nan for part in parts])[order],
            logprobs=None,  # where they are wanted, no row takes its best token
        )

    def _upload(self, array: Int32Array | Int64Array) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.clone() if self._device.type == "cpu" else tensor.to(self._device)


class PendingSample:
    """The samples of a batch's steps, on their way to the host.

    Args:
        steps: Of each step the rows that took part in it, and what they sampled.
        num_rows: Rows of the batch.
        num_saved_kv_tokens: Keys that were read once for several rows instead of again for each.
    """

    def __init__(
        self,
        steps: list[tuple[RowArray, SampleResult]],
        *,
        num_rows: int,
        num_saved_kv_tokens: int,
    ) -> None:
        self._steps = steps
        self._num_rows = num_rows
        self._num_saved_kv_tokens = num_saved_kv_tokens

    def result(self) -> SampledTokens:
        """Wait for the batch and return what it sampled.

        Raises:
            EngineError: A step failed on the device.
        """
        shape = (len(self._steps), self._num_rows)
        token_ids = np.zeros(shape, dtype=np.int32)
        is_nan = np.zeros(shape, dtype=np.bool_)
        has_logprobs = self._steps[0][1].logprobs is not None
        logprobs = np.zeros(shape, dtype=np.float32) if has_logprobs else None
        with torch_errors("the device", hint=DEVICE_HINT):
            for step, (rows, result) in enumerate(self._steps):
                token_ids[step, rows] = result.token_ids.cpu().numpy()
                is_nan[step, rows] = result.is_nan.cpu().numpy()
                if logprobs is not None and result.logprobs is not None:
                    logprobs[step, rows] = result.logprobs.cpu().numpy()
        return SampledTokens(
            token_ids=token_ids,
            is_nan=is_nan,
            logprobs=logprobs,
            num_saved_kv_tokens=self._num_saved_kv_tokens,
        )


def _best_sample(search: BestTokenSearch, hidden: torch.Tensor) -> SampleResult:
    best = search.best_tokens(hidden)
    token_ids = best.token_ids.masked_fill(best.is_nan, 0)
    return SampleResult(token_ids=token_ids, is_nan=best.is_nan, logprobs=None)


def _dense_block_tables(block_tables: BlockTables) -> Int32Array:
    """Return [num_seqs, max_blocks_per_seq], padded with 0."""
    num_blocks = np.diff(block_tables.starts)
    dense = np.zeros((len(num_blocks), int(num_blocks.max())), dtype=np.int32)
    dense[np.arange(dense.shape[1]) < num_blocks[:, None]] = block_tables.block_ids
    return dense
