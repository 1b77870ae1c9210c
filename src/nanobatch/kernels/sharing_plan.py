"""Which beginnings the rows of a decode step attend to together, decided by what it costs.

Rows come in depth-first order of the tree of their block tables, with the number of blocks that
neighbours have in common. A *node* of that tree is a run of rows that have more blocks in common
with each other than with the rows around them; its *segment* is what it adds to its parent's
blocks. A segment that is shared is read once for all rows of its node, by tiles of queries, and
leaves a partial result with each row; one that is not belongs to the nodes and rows below. What is
cheaper is done (`kernels.sharing_costs`).

Knows numbers of blocks only, no lengths: a plan serves as long as the same rows run.

Sharing at every depth: Hydragen (Juravsky et al., 2024). A cost model that decides which levels
to merge: FastTree (Pan et al., 2025), whose kernels assign queries to nodes in this manner.
"""

from dataclasses import dataclass

import numpy as np

from nanobatch.kernels.shared_items import MAX_SHARED_PARTIALS, Int32Array, SharedItems
from nanobatch.kernels.sharing_costs import ROUND_KEY_COST, SharingCosts

MIN_RANGE_TOKENS = 256
"""Shared ranges are not cut shorter than that to occupy the device."""
MAX_LEVELS = 4
"""Most segments on the way to a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPlan:
    """What rows attend to together.

    Attributes:
        items: Work of the shared kernel.
        num_read_tokens: Keys that it reads, each once, in a step.
    """

    items: SharedItems
    num_read_tokens: int

    def num_saved_tokens(self, num_steps_of_rows: Int32Array) -> int:
        """Return the keys that a chunk of steps attends to without reading them.

        Args:
            num_steps_of_rows: [num_rows] steps of each row, without those that are padding; the
                longest is the chunk's.
        """
        first_tokens = self.items.row_first_tokens[: len(num_steps_of_rows)].astype(np.int64)
        num_attended = int(np.dot(first_tokens, num_steps_of_rows))
        return max(num_attended - self.num_read_tokens * int(num_steps_of_rows.max()), 0)


def plan_sharing(
    num_shared_blocks: Int32Array, costs: SharingCosts, *, max_items: int
) -> SharingPlan | None:
    """Decide what the rows of a step attend to together.

    Args:
        num_shared_blocks: [num_rows] int32, leading blocks that each row has in common with the
            row before it, all of them full of keys that both attend to; 0 for the first row.
        costs: What sharing costs.
        max_items: Most items.

    Returns:
        The plan, or None if sharing is not worth it.
    """
    segments = _choose_segments(_nodes(num_shared_blocks, costs), costs, len(num_shared_blocks))
    if sum(segment.gain for segment in segments) <= costs.step_keys:
        return None
    items = _cut(segments, costs, num_rows=len(num_shared_blocks), max_items=max_items)
    if items is None:
        return None
    num_read_tokens = sum(segment.end_token - segment.first_token for segment in segments)
    return SharingPlan(items=items, num_read_tokens=num_read_tokens)


@dataclass(slots=True)
class _Node:
    """Rows first_row to end_row, which have num_blocks in common.

    `spared` is what it spares to read a key of its segment, compared with each row for itself,
    that nodes below read it for their rows.
    """

    first_row: int
    num_blocks: int
    spared: float = 0.0
    end_row: int = 0

    @property
    def num_rows(self) -> int:
        return self.end_row - self.first_row

    @property
    def unshared_cost(self) -> float:
        return self.num_rows - self.spared


@dataclass(frozen=True, slots=True)
class _Segment:
    """Tokens first to end, read once for rows first to end, after `level` others of theirs."""

    first_row: int
    end_row: int
    first_token: int
    end_token: int
    level: int
    gain: float

    @property
    def num_rows(self) -> int:
        return self.end_row - self.first_row


def _nodes(num_shared_blocks: Int32Array, costs: SharingCosts) -> list[_Node]:
    """Return the nodes with two rows or more, children before their parents.

    The intervals of an LCP array, found with a stack (Abouelhoda et al., 2004): a row that has
    less in common with the one before it than those have with each other ends their node.
    """
    changes = np.flatnonzero(np.diff(num_shared_blocks, prepend=0)).tolist()
    common = num_shared_blocks.tolist()
    nodes, stack = list[_Node](), [_Node(first_row=0, num_blocks=0)]
    for row in (*changes, len(common)):
        num_blocks = common[row] if row < len(common) else 0
        first_row, spared = row - 1, 0.0
        while stack[-1].num_blocks > num_blocks:
            node = stack.pop()
            node.end_row, first_row = row, node.first_row
            nodes.append(node)
            parent_blocks = max(num_blocks, stack[-1].num_blocks)
            spared = _spared_in_parent(node, parent_blocks, costs)
            if parent_blocks == stack[-1].num_blocks:
                stack[-1].spared += spared
        if stack[-1].num_blocks < num_blocks:
            stack.append(_Node(first_row, num_blocks, spared))
    return nodes


def _spared_in_parent(node: _Node, parent_blocks: int, costs: SharingCosts) -> float:
    """Return what it spares a key of the parent's segment that this node reads it for its rows."""
    gain = costs.gain(
        unshared_cost=node.unshared_cost,
        num_rows=node.num_rows,
        num_tokens=(node.num_blocks - parent_blocks) * costs.block_size,
    )
    return node.num_rows - costs.shared_cost(node.num_rows) if gain > 0 else node.spared


def _choose_segments(nodes: list[_Node], costs: SharingCosts, num_rows: int) -> list[_Segment]:
    """Return the segments that are worth sharing, parents before their children.

    What a node does not share is left to those below it: their segments begin earlier.
    """
    segments: list[_Segment] = []
    first_tokens, num_levels = np.zeros((2, num_rows), dtype=np.int32)
    for node in reversed(nodes):
        rows = slice(node.first_row, node.end_row)
        first_token, end_token = (
            int(first_tokens[node.first_row]),
            node.num_blocks * costs.block_size,
        )
        level = int(num_levels[node.first_row])
        gain = costs.gain(
            unshared_cost=node.unshared_cost,
            num_rows=node.num_rows,
            num_tokens=end_token - first_token,
        )
        if gain > 0 and level < MAX_LEVELS:
            segments.append(
                _Segment(node.first_row, node.end_row, first_token, end_token, level, gain)
            )
            first_tokens[rows] = end_token
            num_levels[rows] += 1
    return segments


def _cut(
    segments: list[_Segment], costs: SharingCosts, *, num_rows: int, max_items: int
) -> SharedItems | None:
    """Cut segments into items, by rows as many as fit a tile and by tokens to occupy the device.

    Returns None if these are too many.
    """
    range_tokens = _range_tokens(segments, costs)
    pieces: list[tuple[int, int, int, int, int]] = []
    row_num_partials, row_first_tokens = np.zeros((2, num_rows), dtype=np.int32)
    for segment in segments:
        first_partial = int(row_num_partials[segment.first_row])
        ranges = _ranges(segment, range_tokens, costs.block_size)
        row_num_partials[segment.first_row : segment.end_row] += len(ranges)
        row_first_tokens[segment.first_row : segment.end_row] = segment.end_token
        for first_row in range(segment.first_row, segment.end_row, costs.max_rows_of_item):
            rows = min(costs.max_rows_of_item, segment.end_row - first_row)
            pieces += [
                (first_row, rows, first, end, first_partial + place)
                for place, (first, end) in enumerate(ranges)
            ]
    if len(pieces) > max_items:
        return None
    columns = np.array(pieces, dtype=np.int32).T
    longest_first = np.argsort(columns[2] - columns[3], kind="stable")
    first_rows, num_rows_of_items, firsts, ends, partials = columns[:, longest_first]
    return SharedItems(
        item_first_rows=first_rows,
        item_num_rows=num_rows_of_items,
        item_first_tokens=firsts,
        item_end_tokens=ends,
        item_partials=partials,
        row_num_partials=row_num_partials,
        row_first_tokens=row_first_tokens,
    )


def _range_tokens(segments: list[_Segment], costs: SharingCosts) -> int:
    """Return how long ranges should be: short ones occupy the device, long ones merge less."""
    num_tokens = np.array([segment.end_token - segment.first_token for segment in segments])
    num_rows = np.array([segment.num_rows for segment in segments])
    num_tiles = -(-num_rows // costs.max_rows_of_item)
    per_program = float((num_tiles * num_tokens).sum()) / costs.num_parallel_items
    max_ranges = MAX_SHARED_PARTIALS // (1 + max(segment.level for segment in segments))
    longest = int(num_tokens.max())

    def cost(range_tokens: int) -> float:
        num_ranges = np.maximum(np.rint(num_tokens / range_tokens), 1)
        # Programs end up to one range apart.
        rounds = max(per_program + range_tokens / 2, range_tokens)
        return float(ROUND_KEY_COST * rounds + costs.partial_keys * (num_rows * num_ranges).sum())

    choices = [max(-(-longest // count), MIN_RANGE_TOKENS) for count in range(1, max_ranges + 1)]
    return min(choices, key=cost)


def _ranges(segment: _Segment, range_tokens: int, block_size: int) -> list[tuple[int, int]]:
    """Cut a segment's tokens into equal ranges of whole blocks, about range_tokens long."""
    num_tokens = segment.end_token - segment.first_token
    num_ranges = max(round(num_tokens / range_tokens), 1)
    length = -(-num_tokens // (num_ranges * block_size)) * block_size
    firsts = range(segment.first_token, segment.end_token, length)
    return [(first, min(first + length, segment.end_token)) for first in firsts]
