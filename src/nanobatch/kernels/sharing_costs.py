"""When it is cheaper to read a beginning once for many rows than once for each.

Shared, a segment of keys is read by tiles of queries, and leaves a partial result with each row;
else it is read by each row for itself, or by those nodes below that share segments of their own.

    TILE_KEY_COST * tiles * keys + partial * rows + ITEM_COST_KEYS * tiles
        <  (rows + TILE_KEY_COST * tiles of nodes below) * keys

All costs are in units of one key that a row reads by itself although others share it: much of that
comes from the L2 cache, 0.65 ns for 4,096 bytes. The constants were measured on an H200
(docs/measurements.md); they say what is worth it, never what is computed.
"""

from dataclasses import dataclass
from typing import Self

TILE_KEY_COST = 1.9
"""A key that a tile of queries attends to: 1.1 in groups that fill it, 1.9 in groups of 4 rows."""
PARTIAL_COST_BYTES = 10e3
"""A partial result of one row and KV head: what could be read instead of taking it up, 1.6 ns."""
ITEM_COST_KEYS = 150.0
"""What it takes to begin and to end a piece of shared work."""
STEP_COST_BYTES = 48e6
"""What a layer could read while a second kernel is launched, 8 µs."""
ROUND_KEY_COST = 36.0
"""A key that all programs of the device attend to at once, each with a tile of queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingCosts:
    """What sharing costs, in keys that are read for one row alone.

    Attributes:
        block_size: Tokens per KV block.
        max_rows_of_item: Rows whose queries fit one tile.
        num_parallel_items: Items that run at once, all KV heads of an item counting as one.
        partial_keys: Writing and reading one row's partial result.
        step_keys: Sharing anything at all.
    """

    block_size: int
    max_rows_of_item: int
    num_parallel_items: float
    partial_keys: float
    step_keys: float

    @classmethod
    def of_heads(
        cls,
        *,
        num_kv_heads: int,
        head_dim: int,
        element_bytes: int,
        block_size: int,
        max_rows_of_item: int,
        num_programs: int,
    ) -> Self:
        """Derive costs from a model's heads.

        Args:
            num_kv_heads: KV heads.
            head_dim: Elements per head.
            element_bytes: Bytes of an element of the KV pool.
            block_size: Tokens per KV block.
            max_rows_of_item: Rows whose queries fit one tile.
            num_programs: Programs that run at once, each with one KV head of an item.
        """
        key_bytes = 2 * num_kv_heads * head_dim * element_bytes
        return cls(
            block_size=block_size,
            max_rows_of_item=max_rows_of_item,
            num_parallel_items=num_programs / num_kv_heads,
            partial_keys=PARTIAL_COST_BYTES * num_kv_heads / key_bytes,
            step_keys=STEP_COST_BYTES / key_bytes,
        )

    def num_tiles(self, num_rows: int) -> int:
        """Return how many tiles of queries some rows make."""
        return -(-num_rows // self.max_rows_of_item)

    def shared_cost(self, num_rows: int) -> float:
        """Return what reading a key for some rows together costs."""
        return TILE_KEY_COST * self.num_tiles(num_rows)

    def gain(self, *, unshared_cost: float, num_rows: int, num_tokens: int) -> float:
        """Return what it gains to read a segment once for its rows.

        Args:
            unshared_cost: What reading a key of it costs otherwise, for all its rows.
            num_rows: Rows that share it.
            num_tokens: Its length.
        """
        saved = (unshared_cost - self.shared_cost(num_rows)) * num_tokens
        return saved - self.partial_keys * num_rows - ITEM_COST_KEYS * self.num_tiles(num_rows)
