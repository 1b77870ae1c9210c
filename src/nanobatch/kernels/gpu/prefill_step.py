"""The attention of a step of prompt chunks on a GPU: planned once, used by every layer.

A sequence that begins in the step (*fresh*) sees only keys of the step, which stand one after the
other; any other also sees keys from before, which stand in the pool. Each kind has its own launch.
Sequences that begin alike attend to the shared keys as one group where that is faster; otherwise
what is computed for a sequence does not depend on what else is in the step.

FA3 reads all keys from the pool. Over new keys it is 6 to 8 % faster (413 to 437 TFLOP/s against
386 to 406 on an H200), but there it reads beyond a sequence's end: a NaN of the next one would
become its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from nanobatch.kernels.attention_backend import AttentionBackend
from nanobatch.kernels.gpu.prefill_costs import group_costs
from nanobatch.kernels.gpu.prefill_group_launches import plan_flash3_groups, plan_triton_groups
from nanobatch.kernels.gpu.prefill_launches import (
    AttentionLaunch,
    Flash2Fresh,
    Flash3Paged,
    LayerTensors,
    Rows,
    TritonFresh,
    TritonPaged,
)
from nanobatch.kernels.gpu.prefill_tiling import PrefillTiling
from nanobatch.kernels.packed_upload import PackedUpload
from nanobatch.kernels.prefill_groups import GroupCosts, find_shared_groups
from nanobatch.kernels.prefill_plan import (
    SECTION_BYTES,
    PrefillChunks,
    SharedGroups,
    TileLimits,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillStep:
    """A `StepAttention` of prompt chunks.

    Attributes:
        launches: Run in this order; later ones may overwrite rows of earlier ones.
        window: Keys that a query sees, itself included; None sees all before it.
    """

    launches: tuple[AttentionLaunch, ...]
    window: int | None

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
        """Attend to every key that each query sees; see `StepAttention`."""
        layer = LayerTensors(
            query=query,
            key=key,
            value=value,
            key_cache=key_cache,
            value_cache=value_cache,
            scale=scale,
        )
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for launch in self.launches:
            launch.run(layer, window=self.window, out=out)
        return out


class PrefillPlanner:
    """Plans the steps of one model.

    Args:
        backend: What computes attention; not torch.
        num_heads: Query heads of this rank.
        num_kv_heads: KV heads of this rank.
        head_dim: Dimensions per head.
        dtype: Of queries, keys and values.
        block_size: Tokens per block of the pool.
        upload: Carries plans to the device.
        enable_shared_attention: Sequences that begin alike may attend to that as a group.
        costs: Decide which do; measured ones by default.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        block_size: int,
        upload: PackedUpload,
        enable_shared_attention: bool = True,
        costs: GroupCosts | None = None,
    ) -> None:
        assert backend is not AttentionBackend.TORCH, "torch has its own plan"
        self._backend = backend
        self._upload = upload
        self._block_size = block_size
        group_size = num_heads // num_kv_heads
        self._tiling = PrefillTiling.for_heads(
            head_dim=head_dim, group_size=group_size, dtype=dtype
        )
        bytes_per_key = 2 * num_kv_heads * head_dim * dtype.itemsize
        self._limits = TileLimits(
            queries_per_tile=self._tiling.queries_per_tile(group_size),
            keys_per_section=max(1, SECTION_BYTES // bytes_per_key),
        )
        self._enable_shared_attention = enable_shared_attention
        self._costs = costs or group_costs(
            backend,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            tiling=self._tiling,
        )

    def plan(
        self, chunks: PrefillChunks, *, windows: Iterable[int | None]
    ) -> dict[int | None, PrefillStep]:
        """Plan a step, for layers of every window at once, and upload the plan.

        Args:
            chunks: The step.
            windows: Windows of the model's layers; repeated ones do not matter.

        Returns:
            The step's attention by window.
        """
        asked = frozenset(windows)
        groups = self._groups(chunks) if None in asked else SharedGroups.none()
        is_grouped = {window: window is None and groups.num_groups > 0 for window in asked}
        launches = {
            grouped: tuple(self._launches(chunks, groups if grouped else SharedGroups.none()))
            for grouped in set(is_grouped.values())
        }
        return {
            window: PrefillStep(launches=launches[grouped], window=window)
            for window, grouped in is_grouped.items()
        }

    def _groups(self, chunks: PrefillChunks) -> SharedGroups:
        if not self._enable_shared_attention:
            return SharedGroups.none()
        return find_shared_groups(
            chunks,
            block_size=self._block_size,
            keys_multiple=self._tiling.tile_keys,
            costs=self._costs,
        )

    def _launches(self, chunks: PrefillChunks, groups: SharedGroups) -> Iterable[AttentionLaunch]:
        """Yield a step's launches; a kind without sequences needs none."""
        reads_pool = ~chunks.is_fresh | (self._backend is AttentionBackend.FA3)
        is_alone = groups.shared_keys_of_rows(chunks.num_seqs) == 0
        if not reads_pool.all():
            yield self._over_new_keys(chunks, np.flatnonzero(~reads_pool))
        if groups.num_groups:
            yield self._over_shared_keys(chunks, groups)
        if (reads_pool & is_alone).any():
            yield self._over_pool(chunks, np.flatnonzero(reads_pool & is_alone))

    def _over_shared_keys(self, chunks: PrefillChunks, groups: SharedGroups) -> AttentionLaunch:
        if self._backend is AttentionBackend.FA3:
            return plan_flash3_groups(
                chunks,
                groups,
                block_size=self._block_size,
                tiling=self._tiling,
                limits=self._limits,
                upload=self._upload,
            )
        return plan_triton_groups(
            chunks, groups, tiling=self._tiling, limits=self._limits, upload=self._upload
        )

    def _over_pool(self, chunks: PrefillChunks, rows: Rows) -> AttentionLaunch:
        if self._backend is AttentionBackend.FA3:
            return Flash3Paged.plan(chunks, rows, block_size=self._block_size, upload=self._upload)
        return TritonPaged.plan(
            chunks, rows, tiling=self._tiling, limits=self._limits, upload=self._upload
        )

    def _over_new_keys(self, chunks: PrefillChunks, rows: Rows) -> AttentionLaunch:
        if self._backend is AttentionBackend.FA2:
            return Flash2Fresh.plan(chunks, upload=self._upload)
        return TritonFresh.plan(
            chunks, rows, tiling=self._tiling, limits=self._limits, upload=self._upload
        )
