"""Published blocks by their content: where the beginning of a sequence can be found.

Knows entries and block ids; not who holds a block, nor whether it is free. Entries are found by a
chained 128-bit hash, but a hit also needs equal tokens and the identical parent entry, so a
collision costs time, never correctness. An entry's id is never used again after its block was
given away, so what was published below an entry that is gone cannot be found.
"""

from collections.abc import Callable

from nanobatch.engine.cache_entry import ROOT_ENTRY_ID, CacheEntry, PrefixHits
from nanobatch.engine.common_prefix import num_common_tokens
from nanobatch.engine.copy_sources import CopySources
from nanobatch.engine.sequence import INT32_BYTES, Sequence

HashFunction = Callable[[bytes], bytes]


class PrefixCache:
    """Entries of the blocks of a pool.

    Args:
        num_blocks: Size of the pool.
        hash_function: Maps parent hash and token bytes, joined, to a hash.

    Attributes:
        copy_sources: The same entries by what they follow, for sequences that only begin alike.
    """

    __slots__ = (
        "_by_block",
        "_by_hash",
        "_entry_ids",
        "_hash_function",
        "_last_entry_id",
        "_parent_ids",
        "copy_sources",
    )

    def __init__(self, num_blocks: int, hash_function: HashFunction) -> None:
        self._hash_function = hash_function
        self._by_block: list[CacheEntry | None] = [None] * num_blocks
        self._entry_ids: list[int | None] = [None] * num_blocks  # of the same entries
        self._by_hash: dict[bytes, CacheEntry] = {}
        self._parent_ids = {ROOT_ENTRY_ID}
        self._last_entry_id = ROOT_ENTRY_ID
        self.copy_sources = CopySources()

    def clear(self) -> None:
        """Forget all entries."""
        self._by_block = [None] * len(self._by_block)
        self._entry_ids = [None] * len(self._entry_ids)
        self._by_hash.clear()
        self._parent_ids = {ROOT_ENTRY_ID}
        self.copy_sources = CopySources()

    def block_hash(self, seq: Sequence, index: int, token_bytes: bytes) -> bytes:
        """Return a block's hash, computed once; those of the blocks before it are known."""
        hashes = seq.block_hashes
        if index == len(hashes):
            parent_hash = hashes[-1] if hashes else b""
            hashes.append(self._hash_function(parent_hash + token_bytes))
        return hashes[index]

    def of_block(self, block_id: int) -> CacheEntry | None:
        """Return the entry of a block; None if its content is not published."""
        return self._by_block[block_id]

    def find(self, block_hash: bytes, parent_id: int, token_bytes: bytes) -> CacheEntry | None:
        """Return the entry of these tokens after that parent, None if there is none."""
        entry = self._by_hash.get(block_hash)
        if entry is None or entry.parent_id != parent_id:
            return None
        return entry if entry.token_bytes == token_bytes else None

    def match(self, seq: Sequence, block_size: int, *, neighbour: Sequence | None) -> PrefixHits:
        """Find the entries that continue those a sequence already has.

        Args:
            seq: The sequence.
            block_size: Tokens per block.
            neighbour: A sequence that perhaps begins alike. Sequences are admitted in the order of
                their prompts, and what two have in common is compared in one piece.

        Returns:
            Entries of consecutive full blocks of known tokens, perhaps none.
        """
        hits = self._match_neighbour(seq, neighbour, block_size)
        parent_id = _last_entry_id(seq, hits)
        for index in range(len(seq.prefix_entry_ids) + len(hits), seq.num_tokens // block_size):
            token_bytes = seq.token_bytes(index * block_size, (index + 1) * block_size)
            entry = self.find(self.block_hash(seq, index, token_bytes), parent_id, token_bytes)
            if entry is None:
                break
            parent_id = entry.entry_id
            hits.block_ids.append(entry.block_id)
            hits.entry_ids.append(parent_id)
        return hits

    def _match_neighbour(
        self, seq: Sequence, neighbour: Sequence | None, block_size: int
    ) -> PrefixHits:
        """Find the entries of a sequence's first blocks that another one holds as well."""
        if neighbour is None or seq.prefix_entry_ids or not neighbour.prefix_entry_ids:
            return PrefixHits()
        num_blocks = min(seq.num_tokens // block_size, len(neighbour.prefix_entry_ids))
        num_tokens = num_blocks * block_size
        num_hits = (
            num_common_tokens(seq.tokens(0, num_tokens), neighbour.tokens(0, num_tokens))
            // block_size
        )
        block_ids = neighbour.block_table[:num_hits]
        entry_ids = neighbour.prefix_entry_ids[:num_hits]
        published_ids = self._entry_ids
        held_ids = [published_ids[block_id] for block_id in block_ids]
        if held_ids != entry_ids:
            # From where on the neighbour's content was published by a third sequence.
            pairs = enumerate(zip(held_ids, entry_ids, strict=True))
            num_hits = next(index for index, (held_id, entry_id) in pairs if held_id != entry_id)
            del block_ids[num_hits:], entry_ids[num_hits:]
        # Hashes are chained: equal tokens up to a block have equal ones.
        seq.block_hashes += neighbour.block_hashes[len(seq.block_hashes) : num_hits]
        return PrefixHits(block_ids, entry_ids, num_held=num_hits)

    def publish(
        self, seq: Sequence, end: int, *, block_size: int, forget: Callable[[int], None]
    ) -> None:
        """Make entries of a sequence's blocks up to `end`, as many as can be found afterwards.

        Content that another block already holds is not published twice. At a hash collision, and
        where an entry before is gone, later blocks have to wait.

        Args:
            seq: The sequence; it gets the entries' ids.
            end: Block after the last one; all of them are full.
            block_size: Tokens per block.
            forget: Takes out the entry of a block, and counts that.
        """
        entry_ids, hashes, table = seq.prefix_entry_ids, seq.block_hashes, seq.block_table
        start, block_bytes = len(entry_ids), block_size * INT32_BYTES
        token_bytes = seq.token_bytes(start * block_size, end * block_size)
        parent_id = entry_ids[-1] if entry_ids else ROOT_ENTRY_ID
        hash_function, by_hash, parent_ids = self._hash_function, self._by_hash, self._parent_ids
        # A hot loop: for every block that a sequence has to itself.
        for index in range(start, end):
            place = (index - start) * block_bytes
            content = token_bytes[place : place + block_bytes]
            if index < len(hashes):
                block_hash = hashes[index]
            else:
                block_hash = hash_function((hashes[-1] if hashes else b"") + content)
                hashes.append(block_hash)
            if parent_id not in parent_ids:
                return
            known = by_hash.get(block_hash)
            if known is None:
                parent_id = self._add(table[index], block_hash, parent_id, content)
            elif known.parent_id in parent_ids:
                twin = self.find(block_hash, parent_id, content)
                if twin is None:
                    return
                parent_id = twin.entry_id
            else:
                forget(known.block_id)
                parent_id = self._add(table[index], block_hash, parent_id, content)
            entry_ids.append(parent_id)

    def _add(self, block_id: int, block_hash: bytes, parent_id: int, token_bytes: bytes) -> int:
        """Make an entry for a block that has none, with a hash that no other entry has."""
        assert self._by_block[block_id] is None, "a published block is never published again"
        entry_id = self._last_entry_id = self._last_entry_id + 1
        entry = CacheEntry(entry_id, block_id, block_hash, parent_id, token_bytes)
        self._by_block[block_id] = self._by_hash[block_hash] = entry
        self._entry_ids[block_id] = entry_id
        self._parent_ids.add(entry_id)
        self.copy_sources.add(entry)
        return entry_id

    def remove(self, block_id: int) -> None:
        """Take out the entry of a published block."""
        entry = self._by_block[block_id]
        assert entry is not None, "only a published block has an entry"
        self._by_block[block_id] = self._entry_ids[block_id] = None
        del self._by_hash[entry.block_hash]
        self._parent_ids.remove(entry.entry_id)
        self.copy_sources.remove(entry)

    def check_integrity(self) -> None:
        """Check that all ways to find an entry lead to the same ones.

        Raises:
            AssertionError: They do not.
        """
        published = [entry for entry in self._by_block if entry is not None]
        assert len(self._by_hash) == len(published)
        assert sum(entry_id is not None for entry_id in self._entry_ids) == len(published)
        assert self._parent_ids == {ROOT_ENTRY_ID, *(entry.entry_id for entry in published)}
        self.copy_sources.check_integrity(published)
        for entry in published:
            assert self._by_block[entry.block_id] is entry
            assert self._entry_ids[entry.block_id] == entry.entry_id
            assert self._by_hash[entry.block_hash] is entry
            assert entry.parent_id < entry.entry_id <= self._last_entry_id


def _last_entry_id(seq: Sequence, hits: PrefixHits) -> int:
    if hits.entry_ids:
        return hits.entry_ids[-1]
    return seq.prefix_entry_ids[-1] if seq.prefix_entry_ids else ROOT_ENTRY_ID
