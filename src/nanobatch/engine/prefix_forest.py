"""Waiting rows by what their prompts share: admission goes depth-first through a radix tree.

Rows that share a beginning are admitted one after the other, so that it is computed once and
attended to together, wherever in a file they stand: depth-first order of the prefix tree is
optimal for a cache that holds one path (SGLang, Zheng et al. 2024, section 3; BatchLLM, Zheng et
al. 2024, section 4, plans a whole batch so). Here the tree is that of a look-ahead window: rows
come while others leave.

**Whole blocks.** A node is a beginning of whole KV blocks after which waiting rows part, since
nothing less is found in the cache. What is shared of less than a block makes no node: rows that
share nothing else are children of the root, and go exactly as without a tree.

**Order.** The next row is the best of those that share the most blocks with the row admitted
last: by arrival, or by expected length. It is the best row below the *cursor*, the deepest node
on that row's path with waiting rows. So a subtree is gone through to its end, then the best
among its siblings comes, which is the one with the oldest row (or the longest).

**Nobody starves.** Rows that keep coming to the cursor's subtree go before older ones elsewhere.
So a *turn*, which begins with the admission of the oldest row, lasts for no more rows than waited
when it began; with all of a file here at once none ends early. Then the oldest row is next,
wherever it stands. Hence there are at most as many turns before a row as older rows waited when
it came, and both numbers are bounded by the window. A turn that ends early costs the computation
of one path of the tree, once a window.

**No pins.** A shared beginning stays in the cache without being held for the rows that wait: the
running ones hold what they share, freed blocks keep their content, and among them ends are reused
before beginnings, older ones before newer ones. Counted over shuffled trees in pools down to one
row (`tests/engine/test_forest_scheduling.py`), each is computed once as long as nobody is
preempted. Where rows outgrow a pool of a few rows, up to 10 % is computed twice: growing rows take
the place of a beginning that no running row holds. To hold it would preempt one of them, which
costs more; to reuse first what finished rows had for themselves gained 2 % there at most.

Adding and removing a row takes O(depth + log n) operations and, in all, copies and comparisons of
the prompt's bytes. Knows prompts; not the pool, nor what fits.
"""

import heapq
import sys
from collections.abc import Iterator

from nanobatch.engine.common_prefix import num_common_words
from nanobatch.engine.forest_node import Child, Key, Leaf, Node, Order, Rank
from nanobatch.engine.sequence import INT32_BYTES, Sequence


class PrefixForest:
    """Waiting rows of one priority, in the order in which they are to be admitted.

    Args:
        block_size: Tokens per KV block; None where nothing is shared, for the order without a
            tree.
    """

    __slots__ = ("_block_bytes", "_cursor", "_leaves", "_num_left_of_turn", "_root")

    def __init__(self, block_size: int | None) -> None:
        # Without blocks one is longer than any prompt.
        self._block_bytes = sys.maxsize if block_size is None else block_size * INT32_BYTES
        self._root = Node(b"", depth=0)
        self._cursor = self._root
        self._num_left_of_turn = 0
        self._leaves: dict[int, Leaf] = {}  # by arrival

    def __len__(self) -> int:
        return len(self._leaves)

    def __contains__(self, leaf: object) -> bool:
        return isinstance(leaf, Leaf) and self._leaves.get(leaf.arrival) is leaf

    def push(self, seq: Sequence, *, arrival: int, length: int) -> Leaf:
        """Add a row.

        Args:
            seq: Its sequence, whose prompt decides where it stands.
            arrival: Number greater than those of all rows before it.
            length: Tokens that its output is expected to have.

        Returns:
            The row, by which it is taken out.
        """
        leaf = Leaf(seq, arrival=arrival, length=length)
        self._leaves[arrival] = leaf
        self._place(leaf)
        for order, rank in enumerate(leaf.ranks):
            node: Node | None = leaf.parent
            while node is not None and node.offer(order, rank):
                node = node.parent
        return leaf

    def peek(self, order: Order) -> Leaf:
        """Return the row that goes next, which stays there; there must be one."""
        node = self._cursor if self._num_left_of_turn > 0 else self._root
        return self._leaves[node.best(order)[-1]]

    def pop(self, leaf: Leaf) -> None:
        """Take out a row that is admitted: the order goes on from there."""
        is_oldest = leaf.ranks[Order.ARRIVAL] is self._root.best(Order.ARRIVAL)
        before, self._cursor = self._cursor, leaf.parent
        self.discard(leaf)
        self._splice_out(before)
        if is_oldest or self._num_left_of_turn <= 0:
            self._num_left_of_turn = len(self._leaves)
        else:
            self._num_left_of_turn -= 1

    def discard(self, leaf: Leaf) -> None:
        """Take out a row that is not admitted."""
        del self._leaves[leaf.arrival]
        node = self._detach(leaf)
        for order, rank in enumerate(leaf.ranks):
            self._withdraw(node, order, rank)
        self._splice_out(node)

    def check_integrity(self) -> None:
        """Check every invariant of the tree, in time linear in the tokens of all rows.

        Raises:
            AssertionError: An invariant does not hold.
        """
        nodes = [self._root]
        leaves: list[Leaf] = []
        for node in nodes:
            for key, child in node.children.items():
                assert child.parent is node and child.key == key, "a child hangs elsewhere"
                if isinstance(child, Node):
                    nodes.append(child)
                else:
                    leaves.append(child)
            self._check_node(node)
        assert self._cursor in nodes, "the cursor has left the tree"
        assert {leaf.arrival: leaf for leaf in leaves} == self._leaves, "rows of the tree"
        assert len(leaves) == len(self._leaves), "a row is in the tree twice"
        for leaf in leaves:
            path = b"".join(node.edge for node in reversed([*_ancestors(leaf)]))
            prompt, depth = self._blocks(leaf.seq), leaf.parent.depth
            assert prompt[:depth] == path, f"{leaf.seq} stands below another's beginning"
            key = prompt[depth : depth + self._block_bytes] or leaf.arrival
            assert leaf.key == key, f"{leaf.seq} stands under another's block"

    def _check_node(self, node: Node) -> None:
        if node is not self._root:
            assert node.parent is not None and node.depth > node.parent.depth, "depth"
            assert len(node.edge) == node.depth - node.parent.depth, "length of an edge"
            assert len(node.edge) % self._block_bytes == 0, "an edge of broken blocks"
            assert node.key == node.edge[: self._block_bytes], "a node under another's block"
            # The cursor's last child may be alone; it is spliced out when the cursor goes on.
            num_at_least = 1 if node is self._cursor else 2
            assert len(node.children) >= num_at_least, "a node where nothing parts"
        for order in Order:
            ranks = node.ranks[order]
            best = [child.best(order) for child in node.children.values()]
            assert set(best) <= set(ranks), "the best row of a child cannot be found"
            assert ranks[:1] == sorted(best)[:1], "the first row is not the best"

    def _place(self, leaf: Leaf) -> None:
        """Hang a row on the deepest node whose beginning it has, or on a new one further down."""
        prompt, block_bytes, node = self._blocks(leaf.seq), self._block_bytes, self._root
        while True:
            key: Key = prompt[node.depth : node.depth + block_bytes] or leaf.arrival
            child = node.children.get(key)
            if child is None:
                node.attach(leaf, key)
                return
            if isinstance(child, Node) and prompt.startswith(child.edge, node.depth):
                node = child
                continue
            node = self._part(node, child, prompt)

    def _part(self, node: Node, child: Child, prompt: bytes) -> Node:
        """Put a node where a prompt parts from a child: not before the block that is their key."""
        start = node.depth
        other = child.edge if isinstance(child, Node) else self._blocks(child.seq)[start:]
        num_common = num_common_words(other, prompt[start:]) * INT32_BYTES
        num_common -= num_common % self._block_bytes
        key = other[num_common : num_common + self._block_bytes]
        return node.insert_above(child, key=key, edge=other[:num_common])

    def _blocks(self, seq: Sequence) -> bytes:
        """Return the full blocks of a prompt: those that others can share."""
        num_bytes = seq.num_prompt_tokens * INT32_BYTES
        return seq.token_bytes(0, (num_bytes - num_bytes % self._block_bytes) // INT32_BYTES)

    def _detach(self, child: Child) -> Node:
        """Take a child out, and the nodes that it leaves empty; return the one above them."""
        node = child.parent
        assert node is not None, "the root stays"
        del node.children[child.key]
        while not node.children and node.parent is not None:
            if self._cursor is node:
                self._cursor = node.parent
            del node.parent.children[node.key]
            node = node.parent
        return node

    def _withdraw(self, node: Node, order: int, rank: Rank) -> None:
        """Let others go first where the row that has left did, from the lowest node upwards."""
        was_first = node.best(order) is rank
        while was_first:
            ranks = node.ranks[order]
            while ranks and ranks[0][-1] not in self._leaves:
                heapq.heappop(ranks)
            if node.parent is None:
                return
            was_first = node.parent.best(order) is rank
            node = node.parent
            node.offer(order, ranks[0])

    def _splice_out(self, node: Node) -> None:
        """Take a node out at which nothing parts any more, unless the order goes on from it."""
        if node is not self._cursor and node is not self._root and len(node.children) == 1:
            node.splice_out()


def _ancestors(leaf: Leaf) -> Iterator[Node]:
    node: Node | None = leaf.parent
    while node is not None:
        yield node
        node = node.parent
