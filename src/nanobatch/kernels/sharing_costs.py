"""When it is cheaper to read a beginning once for many rows than once for each.

Shared, a segment of keys is read by tiles of queries, and leaves a partial result with each row;
else its *readers* read it, one by one: rows, and nodes below that share segments of their own.

    TILE_KEY_COST * (tiles * keys) + partial * rows + ITEM_COST_KEYS * tiles  <  readers * keys

All costs are in units of one key that is read for one row alone. The constants were measured on an
H200 (docs/measurements.md); they say what is worth it, never what is computed.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

TILE_KEY_COST = 1.3
"""A key that a whole tile of queries attends to, in keys that are read for one row alone."""
PARTIAL_COST_FACTOR = 2.0
"""Bytes moved per byte of a partial result: it is written and read."""
ITEM_COST_KEYS = 64.0
"""What it takes to begin and to end a piece of shared work."""
STEP_COST_BYTES = 12e6
"""What a layer could read while the kernel for shared work is launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingCosts:
    """What sharing costs, in keys that are read for one row alone.

    Attributes:
        block_size: Tokens per KV block.
        max_rows_of_item: Rows whose queries fit one tile.
        wanted_items: Items that occupy the device, all KV heads of an item counting as one.
        partial_keys: Writing and reading one row's partial result.
        step_keys: Sharing anything at all.
    """

    block_size: int
    max_rows_of_item: int
    wanted_items: int
    partial_keys: float
    step_keys: float

    @classmethod
    def of_heads(
        cls,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        element_bytes: int,
        block_size: int,
        max_rows_of_item: int,
        wanted_units: int,
    ) -> Self:
        """Derive costs from a model's heads.

        Args:
            num_heads: Query heads.
            num_kv_heads: KV heads.
            head_dim: Elements per head.
            element_bytes: Bytes of an element of the KV pool.
            block_size: Tokens per KV block.
            max_rows_of_item: Rows whose queries fit one tile.
            wanted_units: Pairs of item and KV head that occupy the device.
        """
        key_bytes = 2 * num_kv_heads * head_dim * element_bytes
        partial_bytes = num_heads * (head_dim + 2) * np.dtype(np.float32).itemsize
        return cls(
            block_size=block_size,
            max_rows_of_item=max_rows_of_item,
            wanted_items=-(-wanted_units // num_kv_heads),
            partial_keys=PARTIAL_COST_FACTOR * partial_bytes / key_bytes,
            step_keys=STEP_COST_BYTES / key_bytes,
        )

    def num_tiles(self, num_rows: int) -> int:
        """Return how many tiles of queries some rows make."""
        return -(-num_rows // self.max_rows_of_item)

    def gain(self, *, num_readers: int, num_rows: int, num_tokens: int) -> float:
        """Return what it gains to read a segment once for its rows.

        Args:
            num_readers: Who else would read it, one by one.
            num_rows: Rows that share it.
            num_tokens: Its length.
        """
        num_tiles = self.num_tiles(num_rows)
        saved = (num_readers - TILE_KEY_COST * num_tiles) * num_tokens
        return saved - self.partial_keys * num_rows - ITEM_COST_KEYS * num_tiles
