"""Nodes of the prefix forest: where waiting prompts part, and which row below goes first.

Every node knows the best row of its subtree by each order, so that the next row is found without
looking at any other. Knows one node and its neighbours; not how rows are placed, nor which of
them is to be admitted.
"""

import heapq
from enum import IntEnum
from typing import Final

from nanobatch.engine.sequence import Sequence

SLACK: Final = 64
"""Ranks that a node may hold beyond twice its children before it forgets those that left."""

Key = bytes | int
"""What tells a node's children apart: their next block's tokens as bytes; where a row has no
further full block, its arrival, which nobody shares."""

Rank = tuple[int, ...]
"""A row's place in an order: the least goes first. It ends with the row's arrival."""


class Order(IntEnum):
    """What the rows that share the same are ordered by; the value is an index into `ranks`."""

    ARRIVAL = 0
    LENGTH = 1


class Leaf:
    """A waiting row.

    Args:
        seq: Its sequence.
        arrival: Number that no other row has, and greater than those of the rows before it.
        length: Tokens that its output is expected to have.

    Attributes:
        seq: Its sequence.
        ranks: Its place in each order.
        parent: The node that it hangs on.
        key: Under which it hangs there.
    """

    __slots__ = ("key", "parent", "ranks", "seq")

    def __init__(self, seq: Sequence, *, arrival: int, length: int) -> None:
        self.seq: Final = seq
        self.ranks: Final[tuple[Rank, Rank]] = ((arrival,), (-length, arrival))
        self.parent: Node
        self.key: Key

    @property
    def arrival(self) -> int:
        """The row's number."""
        return self.ranks[Order.ARRIVAL][0]

    def best(self, order: int) -> Rank:
        """Return its rank."""
        return self.ranks[order]


class Node:
    """A beginning of whole blocks after which rows part.

    A node holds, by order, a heap of ranks of rows below it. Among them is the best rank of every
    child, and the first is always that of a row that waits; others may have left (lazy deletion).

    Args:
        edge: The beginning's blocks after those of its parent.
        depth: Bytes of the whole beginning.

    Attributes:
        edge: The beginning's blocks after those of its parent.
        depth: Bytes of the whole beginning.
        children: Nodes and rows by what comes next; empty once the node has left the tree.
        ranks: Heap of ranks of each order.
        parent: The node above; None only for the root.
        key: Under which it hangs there.
    """

    __slots__ = ("children", "depth", "edge", "key", "parent", "ranks")

    def __init__(self, edge: bytes, *, depth: int) -> None:
        self.edge = edge
        self.depth: Final = depth
        self.children: dict[Key, Child] = {}
        self.ranks: Final[tuple[list[Rank], ...]] = ([], [])
        self.parent: Node | None = None
        self.key: Key = b""

    def best(self, order: int) -> Rank:
        """Return the rank of the row that goes first among those below; there must be one."""
        return self.ranks[order][0]

    def attach(self, child: "Child", key: Key) -> None:
        """Hang a node or row on this one; its ranks are offered afterwards."""
        child.parent = self
        child.key = key
        self.children[key] = child

    def insert_above(self, child: "Child", *, edge: bytes, key: bytes) -> "Node":
        """Put a new node between this one and a child of it.

        Args:
            child: The child.
            edge: The blocks that the new node has beyond this one; the child has them, too.
            key: The child's next block after those; empty if it is a row that has none.
        """
        node = Node(edge, depth=self.depth + len(edge))
        self.attach(node, child.key)
        node.attach(child, key or child.best(Order.ARRIVAL)[-1])
        if isinstance(child, Node):
            child.edge = child.edge[len(edge) :]
        for order, ranks in enumerate(node.ranks):
            ranks.append(child.best(order))
        return node

    def splice_out(self) -> None:
        """Leave the tree; the only child takes this node's place."""
        (child,) = self.children.values()
        assert self.parent is not None, "the root stays"
        self.parent.attach(child, self.key)
        if isinstance(child, Node):
            child.edge = self.edge + child.edge
        self.children.clear()

    def offer(self, order: int, rank: Rank) -> bool:
        """Take a rank into a heap, in O(log n); return whether it is the first now."""
        ranks = self.ranks[order]
        if len(ranks) > 2 * len(self.children) + SLACK:
            ranks[:] = [child.best(order) for child in self.children.values()]
            heapq.heapify(ranks)
        heapq.heappush(ranks, rank)
        return ranks[0] is rank


Child = Leaf | Node
