"""The launch that computes groups of prompt chunks: shared keys first, then each chunk's own.

The first pass takes a group's queries as one sequence over the keys that all of them see, by FA3
or by our kernel. The second one is always ours: it goes on from the first one's result, in place,
in the registers that its own sums would start in. Which chunks form groups is decided in
`kernels.prefill_groups`.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from nanobatch.kernels.gpu.flash_attention import FlashRows, fa3_shared
from nanobatch.kernels.gpu.prefill_attention import (
    continued_prefill_attention,
    shared_prefill_attention,
)
from nanobatch.kernels.gpu.prefill_launches import LayerTensors, page_table_of
from nanobatch.kernels.gpu.prefill_tiling import PrefillTiling
from nanobatch.kernels.packed_upload import PackedUpload
from nanobatch.kernels.prefill_plan import (
    Int32Array,
    PrefillChunks,
    SharedGroups,
    TileLimits,
    plan_shared_tiles,
    plan_tiles,
)


class SharedPass(Protocol):
    """Attention of every group over its shared keys."""

    def run(self, layer: LayerTensors, *, out: torch.Tensor) -> torch.Tensor:
        """Write the groups' rows of `out`.

        Returns:
            [num_heads, num_tokens] fp32: the natural logarithm of each row's sum of exponentials
            of scaled scores, where a group has a query.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedThenOwn:
    """An `AttentionLaunch` of all groups of a step, both passes.

    Attributes:
        shared: The first pass.
        own_tiles: [num_tiles, 5] of the second.
        block_ids: [n] the step's block tables.
        tiling: Of the second pass.
    """

    shared: SharedPass
    own_tiles: torch.Tensor
    block_ids: torch.Tensor
    tiling: PrefillTiling

    def run(self, layer: LayerTensors, *, window: int | None, out: torch.Tensor) -> None:
        """See `AttentionLaunch`; the window must be None."""
        assert window is None, "a window may not see what a group shares"
        log_sums = self.shared.run(layer, out=out)
        continued_prefill_attention(
            layer.query,
            layer.key_cache,
            layer.value_cache,
            tiles=self.own_tiles,
            block_ids=self.block_ids,
            scale=layer.scale,
            tiling=self.tiling,
            out=out,
            log_sums=log_sums,
        )


@dataclass(frozen=True, slots=True)
class TritonShared:
    """The first pass by our kernel."""

    tiles: torch.Tensor
    block_ids: torch.Tensor
    tiling: PrefillTiling

    def run(self, layer: LayerTensors, *, out: torch.Tensor) -> torch.Tensor:
        """See `SharedPass`."""
        log_sums = torch.empty(
            (layer.query.shape[1], layer.query.shape[0]), dtype=torch.float32, device=out.device
        )
        shared_prefill_attention(
            layer.query,
            layer.key_cache,
            layer.value_cache,
            tiles=self.tiles,
            block_ids=self.block_ids,
            scale=layer.scale,
            tiling=self.tiling,
            out=out,
            log_sums=log_sums,
        )
        return log_sums


@dataclass(frozen=True, slots=True)
class Flash3Shared:
    """The first pass by FA3."""

    rows: FlashRows
    page_table: torch.Tensor

    def run(self, layer: LayerTensors, *, out: torch.Tensor) -> torch.Tensor:
        """See `SharedPass`."""
        return fa3_shared(
            layer.query,
            layer.key_cache,
            layer.value_cache,
            rows=self.rows,
            page_table=self.page_table,
            scale=layer.scale,
            out=out,
        )


def plan_triton_groups(
    chunks: PrefillChunks,
    groups: SharedGroups,
    *,
    tiling: PrefillTiling,
    limits: TileLimits,
    upload: PackedUpload,
) -> SharedThenOwn:
    """Plan both passes with our kernel.

    Args:
        chunks: The step.
        groups: Of its sequences, at least one; they share multiples of the tiling's `tile_keys`.
        tiling: Of both passes.
        limits: Sizes of tiles and sections.
        upload: Carries the plan to the device.
    """
    shared_tiles, own_tiles, block_ids = upload.upload(
        plan_shared_tiles(chunks, groups, limits=limits),
        _own_tiles(chunks, groups, limits),
        chunks.block_ids,
    )
    shared = TritonShared(shared_tiles, block_ids, tiling)
    return SharedThenOwn(
        shared=shared, own_tiles=own_tiles, block_ids=block_ids, tiling=tiling.of_short_ranges()
    )


def plan_flash3_groups(
    chunks: PrefillChunks,
    groups: SharedGroups,
    *,
    block_size: int,
    tiling: PrefillTiling,
    limits: TileLimits,
    upload: PackedUpload,
) -> SharedThenOwn:
    """Plan the first pass with FA3; see `plan_triton_groups`.

    Args:
        chunks: See there.
        groups: See there.
        block_size: Tokens per block of the pool.
        tiling: Of the second pass.
        limits: Of the second pass.
        upload: See there.
    """
    first_rows, end_rows = groups.first_rows, groups.end_rows
    query_lens = chunks.query_start_loc[end_rows] - chunks.query_start_loc[first_rows]
    query_starts = chunks.query_start_loc[np.append(first_rows, end_rows[-1])]
    own_tiles, block_ids, table_starts, *flash_arrays = upload.upload(
        _own_tiles(chunks, groups, limits),
        chunks.block_ids,
        chunks.table_starts[first_rows],
        query_starts,
        query_lens,
        groups.num_shared_keys.astype(np.int32),
    )
    max_key_len = int(groups.num_shared_keys.max())
    rows = FlashRows(
        query_starts=flash_arrays[0],
        query_lens=flash_arrays[1],
        key_lens=flash_arrays[2],
        max_query_len=int(query_lens.max()),
        max_key_len=max_key_len,
    )
    page_table = page_table_of(block_ids, table_starts, num_pages=-(-max_key_len // block_size))
    shared = Flash3Shared(rows, page_table)
    return SharedThenOwn(
        shared=shared, own_tiles=own_tiles, block_ids=block_ids, tiling=tiling.of_short_ranges()
    )


def _own_tiles(chunks: PrefillChunks, groups: SharedGroups, limits: TileLimits) -> Int32Array:
    """Return [num_tiles, 5] of each grouped sequence's queries over its own keys."""
    shared_keys = groups.shared_keys_of_rows(chunks.num_seqs)
    return plan_tiles(
        chunks,
        np.flatnonzero(shared_keys),
        source_starts=chunks.table_starts,
        limits=limits,
        first_keys=shared_keys,
    )
