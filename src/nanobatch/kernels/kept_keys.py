"""Keys and values of decoding rows, gathered from the pool once for many steps.

A decoding step reads what the step before it read and one token more of each row. Where rows lie
scattered in the pool, gathering them takes a CPU as long as attending to them. So as long as
prompts do not come in between and the rows stay the same, each layer keeps what it gathered, with
room to grow, and appends the step's new keys.

Knows plans and tensors of one decoding step after the other; not sequences. That a block changes
hands only together with its row, unless prompts are computed, is the scheduler's doing.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import torch

from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.attention_plan import AttentionPlan, DenseGroup
from nanobatch.kernels.kv_cache import KVCache
from nanobatch.kernels.paged_attention import KeysValues, paged_attention
from nanobatch.kernels.shared_part import select
from nanobatch.kernels.step_attention import ModelAttention, StepAttention
from nanobatch.kernels.torch_attention import PagedTorchAttention, plan_model_attention

NUM_KEPT_STEPS: Final = 32
"""Steps after which everything is gathered anew: room for as many tokens is kept in every row."""

CAPACITY_MULTIPLE: Final = 32
"""Keys that compiled attention lays side by side (see `compiled.functions`)."""

MAX_KEPT_BYTES: Final = 256 << 20
"""Most memory that all layers together keep; rows that need more are gathered in every step."""


class KeptStepAttention(StepAttention, Protocol):
    """A `StepAttention` of one step after the other."""

    def advance(self) -> None:
        """Go on to the next step: every row has one more token."""
        ...


KeepKeys = Callable[[AttentionPlan], KeptStepAttention]
"""Makes what keeps the keys of a first step's rows, all of one query."""


def kept_capacity(num_keys: int) -> int:
    """Return the keys that a row has room for which begins with `num_keys`."""
    return -(-(num_keys + NUM_KEPT_STEPS) // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE


class DecodePlanner:
    """Plans decoding steps on a CPU, each as a continuation of the one before where it is one.

    Args:
        kv_cache: The pool of all layers.
        windows: The window of each layer.
        shares_keys: Read keys that sequences share once (see `plan_model_attention`).
        keep_keys: Makes what attends while keys are kept; None takes `KeptAttention`.

    Attributes:
        num_saved_keys: Keys that the step planned last does not read again for each sequence.
    """

    def __init__(
        self,
        kv_cache: KVCache,
        *,
        windows: Iterable[int | None],
        shares_keys: bool,
        keep_keys: KeepKeys | None = None,
    ) -> None:
        self._block_size = kv_cache.block_size
        self._token_bytes = [
            2 * keys[0, 0].numel() * keys.itemsize  # keys and values of one token
            for keys in kv_cache.keys
        ]
        self._windows = tuple(windows)
        self._shares_keys = shares_keys
        self._keep_keys = KeptAttention if keep_keys is None else keep_keys
        self._metadata: AttentionMetadata | None = None
        self.num_saved_keys = 0
        self._kept: dict[int | None, KeptStepAttention] = {}
        self._num_steps_left = 0

    def forget(self) -> None:
        """Give up what is kept: blocks may change hands."""
        self._metadata = None
        self._kept = {}

    def plan(self, metadata: AttentionMetadata) -> ModelAttention:
        """Plan one step of rows with one query each."""
        if self._continues(metadata):
            self._num_steps_left -= 1
            for kept in self._kept.values():
                kept.advance()
            self._metadata = metadata  # num_saved_keys stays: the same rows share the same keys
            return ModelAttention(slot_mapping=metadata.slot_mapping, by_window={**self._kept})
        self.forget()
        planned = plan_model_attention(
            metadata,
            block_size=self._block_size,
            windows=self._windows,
            shares_keys=self._shares_keys,
        )
        attention = planned.by_window.get(None)
        if isinstance(attention, PagedTorchAttention):
            self.num_saved_keys = sum(part.num_saved_keys for part in attention.plan.shared)
        if not self._is_worth_keeping(metadata, planned):
            return planned
        self._metadata, self._num_steps_left = metadata, NUM_KEPT_STEPS
        for window, attention in planned.by_window.items():
            assert isinstance(attention, PagedTorchAttention)
            self._kept[window] = self._keep_keys(attention.plan)
        return replace(planned, by_window={**self._kept})

    def _continues(self, metadata: AttentionMetadata) -> bool:
        """Whether the step has the rows of the step before, each one token longer."""
        before = self._metadata
        if before is None or self._num_steps_left == 0 or metadata.num_seqs != before.num_seqs:
            return False
        if not np.array_equal(metadata.seq_lens, before.seq_lens + 1):
            return False
        width = min(before.block_tables.shape[1], metadata.block_tables.shape[1])
        num_blocks = -(-before.seq_lens[:, None] // self._block_size)
        is_past = np.arange(width) >= num_blocks  # entries that nothing is read through
        is_same = metadata.block_tables[:, :width] == before.block_tables[:, :width]
        return bool((is_same | is_past).all())

    def _is_worth_keeping(self, metadata: AttentionMetadata, planned: ModelAttention) -> bool:
        """Whether rows keep all of their keys for some steps, in little enough memory."""
        if metadata.device.type != "cpu":
            return False
        longest = int(metadata.seq_lens.max(initial=0)) + NUM_KEPT_STEPS
        if any(window is not None and longest > window for window in self._windows):
            return False
        num_bytes = 0
        for window, token_bytes in zip(self._windows, self._token_bytes, strict=True):
            attention = planned.by_window[window]
            assert isinstance(attention, PagedTorchAttention)
            num_bytes += token_bytes * sum(
                group.num_pieces * kept_capacity(group.num_keys) for group in attention.plan.groups
            )
        return num_bytes <= MAX_KEPT_BYTES


class KeptAttention:
    """A `StepAttention` of one step after the other, which keeps what it gathers.

    Args:
        plan: Of the first step.
    """

    def __init__(self, plan: AttentionPlan) -> None:
        self._plan = plan
        self._kept = [KeptGroup(group) for group in plan.groups]

    def advance(self) -> None:
        """Go on to the next step: every row has one more token."""
        for kept in self._kept:
            kept.advance()
        self._plan = replace(self._plan, groups=tuple(kept.group for kept in self._kept))

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Attend to every key that each query sees (see `StepAttention.attend`)."""

        def keys_of(index: int, key_pool: torch.Tensor, value_pool: torch.Tensor) -> KeysValues:
            kept = self._kept[index]
            layer = key_cache.data_ptr()
            if layer in kept.layers:
                kept.append(layer, key, value)
            else:
                kept.layers[layer] = kept.gathered(key_pool), kept.gathered(value_pool)
            return kept.of_step(layer)

        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        return paged_attention(
            query, key_cache, value_cache, plan=self._plan, scale=scale, out=out, keys_of=keys_of
        )


class KeptGroup:
    """A group of rows, and the keys and values that every layer keeps of them.

    Attributes:
        group: As it is in this step.
        layers: Keys and values, [num_pieces, capacity, num_kv_heads, head_dim] each, by the
            address of the layer's pool.
    """

    def __init__(self, group: DenseGroup) -> None:
        self.group = group
        self.layers: dict[int, KeysValues] = {}
        self._capacity = kept_capacity(group.num_keys)
        self._places = torch.empty(0, dtype=torch.int64)  # of new keys, rows one after the other

    def advance(self) -> None:
        """Let every row have one more key."""
        lens = self.group.key_lens
        rows = np.arange(len(lens))
        self._places = torch.from_numpy(rows * self._capacity + lens)
        num_keys = self.group.num_keys + 1
        is_seen = np.arange(num_keys) <= lens[:, None]
        bias = np.where(is_seen, np.float32(0), np.float32(-np.inf))[:, None]
        self.group = replace(
            self.group,
            key_lens=lens + 1,
            num_keys=num_keys,
            bias=None if is_seen.all() else torch.from_numpy(bias),
        )

    def gathered(self, pool: torch.Tensor) -> torch.Tensor:
        """Take the first step's keys, or values, out of a layer's pool."""
        group = self.group
        kept = pool.new_empty(group.num_pieces, self._capacity, *pool.shape[1:])
        found = select(pool, group.slots)
        kept[:, : group.num_keys] = found.view(group.num_pieces, group.num_keys, *pool.shape[1:])
        kept[:, group.num_keys :] = 0  # a row that is behind others has gaps, which may hold no NaN
        return kept

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Add the step's keys and values, [num_tokens, num_kv_heads, head_dim]."""
        for kept, new in zip(self.layers[layer], (key, value), strict=True):
            kept.flatten(0, 1).index_copy_(0, self._places, select(new, self.group.tokens))

    def of_step(self, layer: int) -> KeysValues:
        """Return the keys and values, [num_pieces, num_keys, num_kv_heads, head_dim] each."""
        keys, values = self.layers[layer]
        return keys[:, : self.group.num_keys], values[:, : self.group.num_keys]
