"""The pool of KV blocks: who holds which block, and which content can be used again.

Knows sequences, tokens and block ids; not steps, budgets or devices. Blocks are counted by
reference. A full block may be *published*: an entry of the prefix cache then says which tokens
it holds and after which other entry (the idea of vLLM's automatic prefix caching and SGLang's
radix tree, Zheng et al. 2024, section 3). Entries are found by a chained 128-bit hash, but a hit
also needs equal tokens and the identical parent entry, so a collision costs time, never
correctness. An entry's id is never used again after its block was given away, so what was
published below an entry that is gone cannot be found, and gives way to its like.

Freed blocks keep their content until they are reused, which happens oldest first; a sequence's
last block is freed first, so that beginnings outlive ends. Every operation is O(1) per block,
whatever the size of the pool.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import xxhash

from nanobatch.engine.free_blocks import FreeBlockQueue
from nanobatch.engine.sequence import INT32_BYTES, Sequence

HashFunction = Callable[[bytes], bytes]

ROOT_ENTRY_ID = 0
"""Parent of every first block."""


class CacheEntry(NamedTuple):
    """Content of one published block.

    Attributes:
        entry_id: Identity of this content in this block, never reused.
        block_id: Block that holds it.
        block_hash: Hash of the tokens up to and including this block.
        parent_id: Entry of the block before it, or ROOT_ENTRY_ID.
        token_bytes: The block's tokens as int32 bytes.
    """

    entry_id: int
    block_id: int
    block_hash: bytes
    parent_id: int
    token_bytes: bytes


class BlockManager:
    """Hands out KV blocks and remembers what they hold.

    Args:
        num_blocks: Size of the pool.
        block_size: Tokens per block.
        enable_prefix_caching: Publish and find equal beginnings.
        hash_function: Maps parent hash and token bytes, joined, to a hash.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        hash_function: HashFunction = xxhash.xxh3_128_digest,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._hash_function = hash_function
        self._ref_counts = [0] * num_blocks
        self._free_blocks = FreeBlockQueue(num_blocks)
        self._entries: list[CacheEntry | None] = [None] * num_blocks
        self._entry_by_hash: dict[bytes, CacheEntry] = {}
        self._parent_ids = {ROOT_ENTRY_ID}  # below which entries can be found
        self._last_entry_id = ROOT_ENTRY_ID
        self._num_shared = 0
        self._num_cached = 0

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be allocated, with or without reusable content."""
        return len(self._free_blocks)

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks whose content can still be reused."""
        return self._num_cached

    @property
    def num_shared_blocks(self) -> int:
        """Blocks held by two or more sequences."""
        return self._num_shared

    @property
    def num_used_blocks(self) -> int:
        """Blocks held by exactly one sequence."""
        return self.num_blocks - len(self._free_blocks) - self._num_shared

    def num_blocks_of(self, num_tokens: int) -> int:
        """Return how many blocks that many tokens take."""
        return -(-num_tokens // self.block_size)

    def match_prefix(self, seq: Sequence) -> list[CacheEntry]:
        """Find the published blocks that continue those the sequence already has entries for.

        Returns:
            Entries of consecutive full blocks of known tokens, perhaps none.
        """
        hits: list[CacheEntry] = []
        if not self.enable_prefix_caching or seq.avoids_cache:
            return hits
        block_size = self.block_size
        for index in range(len(seq.prefix_entry_ids), seq.num_tokens // block_size):
            parent_id = hits[-1].entry_id if hits else _last_entry_id(seq)
            token_bytes = seq.token_bytes(index * block_size, (index + 1) * block_size)
            block_hash = self._block_hash(seq, index, token_bytes)
            entry = self._find(block_hash, parent_id, token_bytes)
            if entry is None:
                break
            hits.append(entry)
        return hits

    def num_blocks_needed(self, seq: Sequence, hits: list[CacheEntry]) -> int:
        """Return how many free blocks `allocate` takes for the sequence's known tokens."""
        num_idle_hits = sum(self._ref_counts[entry.block_id] == 0 for entry in hits)
        return self.num_blocks_of(seq.num_tokens) - len(hits) + num_idle_hits

    def allocate(self, seq: Sequence, hits: list[CacheEntry]) -> None:
        """Give a sequence without blocks the hits, then fresh blocks for its known tokens."""
        assert not seq.block_table, "blocks are allocated once per admission"
        for entry in hits:
            self._acquire(entry.block_id)
            seq.block_table.append(entry.block_id)
            seq.prefix_entry_ids.append(entry.entry_id)
        for _ in range(self.num_blocks_of(seq.num_tokens) - len(hits)):
            self.append_block(seq)

    def append_block(self, seq: Sequence) -> None:
        """Give the sequence one fresh block; the caller has checked that one is free."""
        block_id = self._free_blocks.pop_oldest()
        if self._entries[block_id] is not None:
            self._forget(block_id)
        self._ref_counts[block_id] = 1
        seq.block_table.append(block_id)

    def publish(self, seq: Sequence, num_tokens: int) -> bool:
        """Publish the sequence's full blocks among its first num_tokens tokens.

        Those tokens must be known, and stored by steps launched before any step that could
        use a hit, or by the very same step. Content that another block already holds is not
        published twice; at a hash collision, and where an entry of the sequence is gone, its
        later blocks have to wait.

        Returns:
            Whether the sequence has more entries than before.
        """
        num_before, block_size = len(seq.prefix_entry_ids), self.block_size
        end = num_tokens // block_size
        if end <= num_before or not self.enable_prefix_caching or seq.avoids_cache:
            return False
        token_bytes = seq.token_bytes(num_before * block_size, end * block_size)
        block_bytes = block_size * INT32_BYTES
        for index in range(num_before, end):
            start = (index - num_before) * block_bytes
            entry_id = self._publish_block(seq, index, token_bytes[start : start + block_bytes])
            if entry_id is None:
                break
            seq.prefix_entry_ids.append(entry_id)
        return len(seq.prefix_entry_ids) > num_before

    def withdraw(self, seq: Sequence, num_entries: int) -> None:
        """Make sure that nobody else finds the sequence's blocks after its first num_entries.

        Those that others hold stay with them, whoever published them.
        """
        for index in range(num_entries, len(seq.prefix_entry_ids)):
            block_id = seq.block_table[index]
            entry = self._entries[block_id]
            if entry is not None and entry.entry_id == seq.prefix_entry_ids[index]:
                self._forget(block_id)
        del seq.prefix_entry_ids[num_entries:]

    def free(self, seq: Sequence) -> None:
        """Give back all blocks of the sequence, the last one first."""
        for block_id in reversed(seq.block_table):
            self._release(block_id)
        del seq.block_table[:]
        seq.prefix_entry_ids.clear()

    def reset_prefix_cache(self) -> None:
        """Forget all published content; no sequence may hold a block.

        Blocks are handed out afterwards as from a new pool.
        """
        assert self.num_free_blocks == self.num_blocks, "a block is held"
        self._free_blocks = FreeBlockQueue(self.num_blocks)
        self._entries = [None] * self.num_blocks
        self._entry_by_hash.clear()
        self._parent_ids = {ROOT_ENTRY_ID}
        self._num_cached = 0

    def check_integrity(self, holders: Iterable[Sequence]) -> None:
        """Check every invariant of the pool, in time linear in its size.

        Args:
            holders: All sequences that hold blocks.

        Raises:
            AssertionError: An invariant does not hold.
        """
        expected_ref_counts = [0] * self.num_blocks
        for seq in holders:
            assert len(set(seq.block_table)) == len(seq.block_table), f"{seq} holds a block twice"
            assert len(seq.prefix_entry_ids) <= len(seq.block_table)
            for block_id in seq.block_table:
                expected_ref_counts[block_id] += 1
        assert self._ref_counts == expected_ref_counts, "reference counts"
        free = self._free_blocks.check_integrity()
        assert sorted(free) == [i for i, count in enumerate(self._ref_counts) if count == 0]
        assert self._num_shared == sum(count > 1 for count in self._ref_counts)
        assert self._num_cached == sum(self._entries[block_id] is not None for block_id in free)
        published = [entry for entry in self._entries if entry is not None]
        assert len(self._entry_by_hash) == len(published)
        assert self._parent_ids == {ROOT_ENTRY_ID, *(entry.entry_id for entry in published)}
        for entry in published:
            assert self._entries[entry.block_id] is entry
            assert self._entry_by_hash[entry.block_hash] is entry
            assert entry.parent_id < entry.entry_id <= self._last_entry_id

    def _block_hash(self, seq: Sequence, index: int, token_bytes: bytes) -> bytes:
        """Return a block's hash, computed once; those of the blocks before it are known."""
        hashes = seq.block_hashes
        if index == len(hashes):
            parent_hash = hashes[-1] if hashes else b""
            hashes.append(self._hash_function(parent_hash + token_bytes))
        return hashes[index]

    def _find(self, block_hash: bytes, parent_id: int, token_bytes: bytes) -> CacheEntry | None:
        entry = self._entry_by_hash.get(block_hash)
        if entry is None or entry.parent_id != parent_id:
            return None
        return entry if entry.token_bytes == token_bytes else None

    def _publish_block(self, seq: Sequence, index: int, token_bytes: bytes) -> int | None:
        block_hash = self._block_hash(seq, index, token_bytes)
        parent_id = _last_entry_id(seq)
        if parent_id not in self._parent_ids:
            return None
        known = self._entry_by_hash.get(block_hash)
        if known is not None and known.parent_id in self._parent_ids:
            twin = self._find(block_hash, parent_id, token_bytes)
            return None if twin is None else twin.entry_id
        if known is not None:
            self._forget(known.block_id)
        self._last_entry_id += 1
        block_id = seq.block_table[index]
        entry = CacheEntry(self._last_entry_id, block_id, block_hash, parent_id, token_bytes)
        assert self._entries[block_id] is None, "a published block is never published again"
        self._entries[block_id] = self._entry_by_hash[block_hash] = entry
        self._parent_ids.add(entry.entry_id)
        return entry.entry_id

    def _forget(self, block_id: int) -> None:
        entry = self._entries[block_id]
        assert entry is not None, "only a published block has an entry to forget"
        self._num_cached -= self._ref_counts[block_id] == 0
        self._parent_ids.remove(entry.entry_id)
        del self._entry_by_hash[entry.block_hash]
        self._entries[block_id] = None

    def _acquire(self, block_id: int) -> None:
        count = self._ref_counts[block_id]
        if count == 0:
            self._free_blocks.remove(block_id)
            self._num_cached -= 1
        elif count == 1:
            self._num_shared += 1
        self._ref_counts[block_id] = count + 1

    def _release(self, block_id: int) -> None:
        count = self._ref_counts[block_id] - 1
        self._ref_counts[block_id] = count
        if count == 1:
            self._num_shared -= 1
        elif count == 0 and self._entries[block_id] is None:
            # Nothing is lost by reusing it before blocks whose content may be asked for again.
            self._free_blocks.push_oldest(block_id)
        elif count == 0:
            self._num_cached += 1
            self._free_blocks.push_newest(block_id)


def _last_entry_id(seq: Sequence) -> int:
    return seq.prefix_entry_ids[-1] if seq.prefix_entry_ids else ROOT_ENTRY_ID
