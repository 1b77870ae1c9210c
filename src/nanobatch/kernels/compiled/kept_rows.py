"""Keys and values of decoding rows in blocks that compiled attention reads, kept for many steps.

What `kept_keys.KeptAttention` is for torch's attention. Keys lie with 32 of them side by side
for each dimension, so that a score is summed without adding up the lanes of a register; one
function appends a step's keys, attends and merges with what rows share.
"""

import numpy as np
import torch

from nanobatch.kernels.attention_plan import AttentionPlan, DenseGroup, IntArray
from nanobatch.kernels.compiled.functions import KEY_LANES
from nanobatch.kernels.compiled.kernels import CompiledKernels, Operations
from nanobatch.kernels.kept_keys import KeepKeys, kept_capacity
from nanobatch.kernels.kernel_set import KernelSet
from nanobatch.kernels.paged_attention import attend_shared_keys
from nanobatch.kernels.shared_part import SharedPart, put, select


def keeper_of(kernels: KernelSet | None) -> KeepKeys | None:
    """Return what keeps the keys of decoding rows where their attention is compiled, else None."""
    if not isinstance(kernels, CompiledKernels) or kernels.operations.attend_rows is None:
        return None
    operations = kernels.operations
    return lambda plan: KeptRowsAttention(plan, operations)


class KeptRowsAttention:
    """A `StepAttention` of one decoding step after the other, which keeps what it gathers.

    Args:
        plan: Of the first step; all of its pieces have one query.
        operations: What it computes with.
    """

    def __init__(self, plan: AttentionPlan, operations: Operations) -> None:
        self._plan = plan
        self._groups = [KeptRows(group, operations) for group in plan.groups]
        self._nothing_shared: SharedPart | None = None

    def advance(self) -> None:
        """Go on to the next step: every row has one more token."""
        for rows in self._groups:
            rows.advance()

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
        assert scale == key.shape[2] ** -0.5, "compiled in"
        slots = (-1, *key_cache.shape[2:])
        pools = key_cache.view(slots), value_cache.view(slots)
        shared = attend_shared_keys(query, *pools, plan=self._plan, scale=scale)
        if shared is None:
            shared = self._nothing(query, num_kv_heads=key.shape[1])
        if len(self._groups) == 1:  # all rows, in their order
            return self._groups[0].attend(query, key, value, pools=pools, shared=shared)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for rows in self._groups:
            attended = rows.attend(query, key, value, pools=pools, shared=shared)
            put(out, rows.tokens, attended)
        return out

    def _nothing(self, query: torch.Tensor, *, num_kv_heads: int) -> SharedPart:
        """Return what a step shares that shares nothing, the same for all layers and steps."""
        if self._nothing_shared is None:
            heads = query.view(len(query), num_kv_heads, -1, query.shape[2])
            self._nothing_shared = SharedPart.nothing(query, like=heads)
        return self._nothing_shared


class KeptRows:
    """A group of rows of similar length, and what every layer keeps of them.

    Args:
        group: In the first step.
        operations: What it computes with.

    Attributes:
        tokens: The rows' queries in the step.
    """

    def __init__(self, group: DenseGroup, operations: Operations) -> None:
        assert group.num_queries == 1, "decoding rows"
        self.tokens = group.tokens
        self._operations = operations
        self._slots = _padded_slots(group)
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # keys and values
        self._num_rows = group.num_pieces
        self._place_keys(group.key_lens)

    def advance(self) -> None:
        """Let every row have one more key."""
        self._place_keys(self._lens + 1)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        pools: tuple[torch.Tensor, torch.Tensor],
        shared: SharedPart,
    ) -> torch.Tensor:
        """Attend with the rows' queries.

        Args:
            query: [num_tokens, num_heads, head_dim] of the whole step.
            key: [num_tokens, num_kv_heads, head_dim], likewise; new, and in the pool.
            value: [num_tokens, num_kv_heads, head_dim], likewise.
            pools: The layer's keys and values, [num_slots, num_kv_heads, head_dim] each.
            shared: Attention of the whole step over keys that rows share.

        Returns:
            [num_rows, num_heads, head_dim].
        """
        layer = pools[0].data_ptr()
        if layer not in self._layers:
            self._layers[layer] = self._gathered(*pools)
        attend_rows = self._operations.attend_rows
        assert attend_rows is not None, "keeper_of"
        (attended,) = attend_rows(
            *(select(tensor, self.tokens).contiguous() for tensor in (query, key, value)),
            *self._layers[layer],
            *self._places,
            *shared.of_rows(self.tokens),
        )
        return attended

    def _gathered(
        self, key_pool: torch.Tensor, value_pool: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the first step's keys and values out of a layer's pools."""
        shape = (self._num_rows, -1, KEY_LANES, *key_pool.shape[1:])
        keys, values = (
            pool.index_select(0, self._slots).view(shape) for pool in (key_pool, value_pool)
        )
        lay_out_keys = self._operations.lay_out_keys
        assert lay_out_keys is not None, "keeper_of"
        (laid_out,) = lay_out_keys(keys)
        return laid_out, values

    def _place_keys(self, lens: IntArray) -> None:
        """Say where the newest key of rows of these lengths is, and which keys are seen."""
        self._lens = lens
        num_blocks = -(-int(lens.max()) // KEY_LANES)
        keys = np.arange(num_blocks * KEY_LANES)
        bias = np.where(keys < lens[:, None], np.float32(0), np.float32(-np.inf))
        self._places = (
            torch.from_numpy(np.stack(np.divmod(lens - 1, KEY_LANES))),
            torch.from_numpy(bias.reshape(len(lens), num_blocks, KEY_LANES)),
        )


def _padded_slots(group: DenseGroup) -> torch.Tensor:
    """Return the slots of each row's keys, and its last one again up to its capacity.

    Returns:
        [num_rows * capacity] int64.
    """
    slots = group.slots
    if isinstance(slots, slice):
        slots = torch.arange(slots.start, slots.stop)
    of_rows = slots.view(group.num_pieces, group.num_keys)
    filling = of_rows[:, -1:].expand(-1, kept_capacity(group.num_keys) - group.num_keys)
    return torch.cat((of_rows, filling), dim=1).flatten()
