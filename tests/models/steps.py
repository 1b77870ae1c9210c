"""Drives a decoder by hand through a paged cache: what the engine does, without the engine."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.kv_cache import KVCache
from nanobatch.kernels.torch_attention import plan_model_attention
from nanobatch.models.decoder import DecoderModel
from nanobatch.models.loader import load_model
from nanobatch.models.source import read_model_config, resolve_model
from nanobatch.parallel.group import SINGLE_RANK, TensorParallelGroup

CPU = torch.device("cpu")


def load(
    path: Path,
    *,
    dtype: torch.dtype = torch.float32,
    group: TensorParallelGroup = SINGLE_RANK,
) -> DecoderModel:
    """Load a checkpoint on the CPU."""
    source = resolve_model(str(path))
    return load_model(source, read_model_config(source), dtype=dtype, device=CPU, group=group)


class PagedSequences:
    """Sequences over a NaN-filled pool, their blocks scattered by a seed."""

    def __init__(
        self,
        model: DecoderModel,
        token_ids: Sequence[Sequence[int]],
        *,
        block_size: int = 16,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.token_ids = [list(ids) for ids in token_ids]
        self.num_computed = [0] * len(token_ids)
        blocks_each = max(-(-len(ids) // block_size) for ids in token_ids)
        num_blocks = blocks_each * len(token_ids) + 3
        order = np.random.default_rng(seed).permutation(num_blocks)
        tables = order[: blocks_each * len(token_ids)].reshape(len(token_ids), blocks_each)
        self.block_tables = tables.astype(np.int32)
        self.kv_cache = KVCache.allocate(
            model.kv_cache_specs(), num_blocks=num_blocks, block_size=block_size, device=CPU
        )
        for pool in (*self.kv_cache.keys, *self.kv_cache.values):
            pool.fill_(torch.nan)

    def step(self, num_tokens: Sequence[int]) -> list[torch.Tensor]:
        """Compute the next tokens of each sequence (0 leaves it out); return all their logits."""
        logits = self.step_for(num_tokens, logits_indices=range(sum(num_tokens)))
        return list(torch.split(logits, [count for count in num_tokens if count]))

    def step_for(
        self, num_tokens: Sequence[int], *, logits_indices: Sequence[int] | None
    ) -> torch.Tensor:
        """Compute the next tokens of each sequence; return the logits of some or all of them."""
        rows = [row for row, count in enumerate(num_tokens) if count]
        spans = [
            (row, self.num_computed[row], self.num_computed[row] + num_tokens[row]) for row in rows
        ]
        positions = np.concatenate([np.arange(start, end) for _, start, end in spans])
        counts = [end - start for _, start, end in spans]
        block_size = self.kv_cache.block_size
        blocks = self.block_tables[np.repeat(rows, counts), positions // block_size]
        metadata = AttentionMetadata.from_arrays(
            query_start_loc=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            seq_lens=np.array([end for _, _, end in spans], np.int32),
            block_tables=self.block_tables[rows],
            slot_mapping=blocks.astype(np.int64) * block_size + positions % block_size,
            device=CPU,
        )
        input_ids = [id_ for row, start, end in spans for id_ in self.token_ids[row][start:end]]
        with torch.inference_mode():
            hidden = self.model.forward(
                torch.tensor(input_ids, dtype=torch.int32),
                torch.from_numpy(positions.astype(np.int32)),
                plan_model_attention(metadata, block_size=block_size, windows=self.model.windows),
                self.kv_cache,
                None if logits_indices is None else torch.tensor(logits_indices, dtype=torch.int32),
            )
            logits = self.model.compute_logits(hidden)
        for row, _, end in spans:
            self.num_computed[row] = end
        return logits

    def run(self, chunk: int) -> list[torch.Tensor]:
        """Compute everything, at most `chunk` tokens of each sequence a step."""
        collected: list[list[torch.Tensor]] = [[] for _ in self.token_ids]
        while any(self._remaining()):
            counts = [min(chunk, remaining) for remaining in self._remaining()]
            rows = [row for row, count in enumerate(counts) if count]
            for row, logits in zip(rows, self.step(counts), strict=True):
                collected[row].append(logits)
        return [torch.cat(pieces) for pieces in collected]

    def _remaining(self) -> list[int]:
        pairs = zip(self.token_ids, self.num_computed, strict=True)
        return [len(ids) - computed for ids, computed in pairs]


def random_prompts(lengths: Sequence[int], *, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Return random token ids."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]
