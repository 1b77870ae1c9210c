"""The launches that the attention of a prompt step may consist of.

A launch computes some sequences of a step, whose keys it reads either from the step's new ones
(*fresh* sequences: they begin in this step) or from the pool. Each brings its plan to the device
in one copy. Which launches a step has is decided in `prefill_step`.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from nanobatch.kernels.gpu.flash_attention import FlashRows, fa2_fresh, fa3_paged
from nanobatch.kernels.gpu.prefill_attention import (
    contiguous_prefill_attention,
    paged_prefill_attention,
)
from nanobatch.kernels.gpu.prefill_tiling import PrefillTiling
from nanobatch.kernels.packed_upload import PackedUpload
from nanobatch.kernels.prefill_plan import PrefillChunks, TileLimits, plan_tiles

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """What a layer hands over; the shapes are those of `StepAttention.attend`."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    scale: float


class AttentionLaunch(Protocol):
    """One launch of a step, for every layer."""

    def run(self, layer: LayerTensors, *, window: int | None, out: torch.Tensor) -> None:
        """Write the sequences' rows of `out` [num_tokens, num_heads, head_dim]."""
        ...


@dataclass(frozen=True, slots=True)
class TritonFresh:
    """Our kernel over the step's new keys."""

    tiles: torch.Tensor
    tiling: PrefillTiling

    @classmethod
    def plan(
        cls,
        chunks: PrefillChunks,
        rows: Rows,
        *,
        tiling: PrefillTiling,
        limits: TileLimits,
        upload: PackedUpload,
    ) -> "TritonFresh":
        """Plan these sequences of a step: [n] rows."""
        tiles = plan_tiles(chunks, rows, source_starts=chunks.query_start_loc[:-1], limits=limits)
        (placed_tiles,) = upload.upload(tiles)
        return cls(placed_tiles, tiling)

    def run(self, layer: LayerTensors, *, window: int | None, out: torch.Tensor) -> None:
        """See `AttentionLaunch`."""
        contiguous_prefill_attention(
            layer.query,
            layer.key,
            layer.value,
            tiles=self.tiles,
            scale=layer.scale,
            window=window,
            tiling=self.tiling,
            out=out,
        )


@dataclass(frozen=True, slots=True)
class TritonPaged:
    """Our kernel over the pool."""

    tiles: torch.Tensor
    block_ids: torch.Tensor
    tiling: PrefillTiling

    @classmethod
    def plan(
        cls,
        chunks: PrefillChunks,
        rows: Rows,
        *,
        tiling: PrefillTiling,
        limits: TileLimits,
        upload: PackedUpload,
    ) -> "TritonPaged":
        """Plan these sequences of a step: [n] rows."""
        tiles = plan_tiles(chunks, rows, source_starts=chunks.table_starts, limits=limits)
        placed_tiles, block_ids = upload.upload(tiles, chunks.block_ids)
        return cls(placed_tiles, block_ids, tiling)

    def run(self, layer: LayerTensors, *, window: int | None, out: torch.Tensor) -> None:
        """See `AttentionLaunch`."""
        paged_prefill_attention(
            layer.query,
            layer.key_cache,
            layer.value_cache,
            tiles=self.tiles,
            block_ids=self.block_ids,
            scale=layer.scale,
            window=window,
            tiling=self.tiling,
            out=out,
        )


@dataclass(frozen=True, slots=True)
class Flash3Paged:
    """FA3 over the pool."""

    rows: FlashRows
    page_table: torch.Tensor

    @classmethod
    def plan(
        cls, chunks: PrefillChunks, rows: Rows, *, block_size: int, upload: PackedUpload
    ) -> "Flash3Paged":
        """Plan these sequences of a step: [n] rows."""
        block_ids, starts, *flash_arrays = upload.upload(
            chunks.block_ids, chunks.table_starts[rows], *_flash_arrays(chunks, rows)
        )
        flash_rows = _flash_rows(chunks, rows, tuple(flash_arrays))
        num_pages = -(-flash_rows.max_key_len // block_size)
        return cls(flash_rows, page_table_of(block_ids, starts, num_pages=num_pages))

    def run(self, layer: LayerTensors, *, window: int | None, out: torch.Tensor) -> None:
        """See `AttentionLaunch`."""
        fa3_paged(
            layer.query,
            layer.key_cache,
            layer.value_cache,
            rows=self.rows,
            page_table=self.page_table,
            scale=layer.scale,
            window=window,
            out=out,
        )


@dataclass(frozen=True, slots=True)
class Flash2Fresh:
    """FA2 over the step's new keys: of all sequences, since it cannot leave any out.

    What it writes for sequences that also have older keys is wrong, and cheap: a later launch
    overwrites it.
    """

    rows: FlashRows

    @classmethod
    def plan(cls, chunks: PrefillChunks, *, upload: PackedUpload) -> "Flash2Fresh":
        """Plan a whole step."""
        rows = np.arange(chunks.num_seqs)
        return cls(_flash_rows(chunks, rows, upload.upload(*_flash_arrays(chunks, rows))))

    def run(self, layer: LayerTensors, *, window: int | None, out: torch.Tensor) -> None:
        """See `AttentionLaunch`."""
        out.copy_(
            fa2_fresh(
                layer.query,
                layer.key,
                layer.value,
                rows=self.rows,
                scale=layer.scale,
                window=window,
            )
        )


def page_table_of(
    block_ids: torch.Tensor, table_starts: torch.Tensor, *, num_pages: int
) -> torch.Tensor:
    """Return [n, num_pages] block tables; FA3 wants a rectangle, what is uploaded stays ragged.

    Entries past a sequence's end are the next one's blocks, or the last block; they are not read.

    Args:
        block_ids: [num_block_ids] int32, tables one after the other.
        table_starts: [n] int32, where each sequence's begins.
        num_pages: Blocks of the longest sequence.
    """
    column = torch.arange(num_pages, dtype=torch.int32, device=block_ids.device)
    return block_ids[(table_starts[:, None] + column).clamp_(max=len(block_ids) - 1)]


def _flash_arrays(chunks: PrefillChunks, rows: Rows) -> tuple[npt.NDArray[np.int32], ...]:
    """Return starts [n + 1] and lengths [n] of queries, and lengths [n] of keys."""
    starts = np.append(chunks.query_start_loc[rows], chunks.query_start_loc[rows[-1] + 1])
    return starts, chunks.query_lens[rows], chunks.seq_lens[rows]


def _flash_rows(chunks: PrefillChunks, rows: Rows, uploaded: tuple[torch.Tensor, ...]) -> FlashRows:
    query_starts, query_lens, key_lens = uploaded
    return FlashRows(
        query_starts=query_starts,
        query_lens=None if len(rows) == chunks.num_seqs else query_lens,
        key_lens=key_lens,
        max_query_len=int(chunks.query_lens[rows].max()),
        max_key_len=int(chunks.seq_lens[rows].max()),
    )
