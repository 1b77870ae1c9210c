"""The pool of KV blocks: who holds which block, and which content can be used again.

Knows sequences, tokens and block ids; not steps, budgets or devices. Blocks are counted by
reference. A full block may be *published*: an entry of the `prefix_cache` then says which tokens
it holds and after which other entry (the idea of vLLM's automatic prefix caching and SGLang's
radix tree, Zheng et al. 2024, section 3). What was published below an entry that is gone gives way
to its like.

A sequence shares the published blocks that begin it; where the next one only begins like it, that
beginning is copied (see `copy_sources`). Copies are made in the step in which the sequence is
admitted, in every layer once the step's keys and values are stored. So what the same step computes
can be copied as well; and since until `take_copies` all sources are held, none is stored into.

Freed blocks keep their content until they are reused, which happens oldest first; a sequence's
last block is freed first, so that beginnings outlive ends. The size of the pool costs nothing; the
number of blocks that follow the same one costs a binary search.
"""

from collections.abc import Iterable
from typing import Final

import xxhash

from nanobatch.engine.cache_entry import ROOT_ENTRY_ID, PrefixHits
from nanobatch.engine.copy_sources import BlockCopy
from nanobatch.engine.free_blocks import FreeBlockQueue
from nanobatch.engine.prefix_cache import HashFunction, PrefixCache
from nanobatch.engine.sequence import Sequence

MIN_COPIED_TOKENS: Final = 4
"""Copies cost a step one small kernel a layer, whoever takes part. For three tokens (of a chat
template, say) a prompt that is otherwise new should not have to read the pool."""


class BlockManager:
    """Hands out KV blocks and remembers what they hold.

    Args:
        num_blocks: Size of the pool.
        block_size: Tokens per block.
        enable_prefix_caching: Publish and find equal beginnings.
        min_copied_tokens: Fewer tokens are computed rather than copied.
        hash_function: Maps parent hash and token bytes, joined, to a hash.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        min_copied_tokens: int = MIN_COPIED_TOKENS,
        hash_function: HashFunction = xxhash.xxh3_128_digest,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._min_copied_tokens = min_copied_tokens
        self._ref_counts = [0] * num_blocks
        self._free_blocks = FreeBlockQueue(num_blocks)
        self._cache = PrefixCache(num_blocks, hash_function)
        self._num_shared = 0
        self._num_cached = 0
        self._copies: list[BlockCopy] = []
        self._neighbour: Sequence | None = None  # the sequence that was admitted last

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

    def match_prefix(self, seq: Sequence) -> PrefixHits:
        """Find the published blocks that continue those the sequence already has entries for.

        Returns:
            Entries of consecutive full blocks of known tokens, perhaps none.
        """
        if not self.enable_prefix_caching or seq.avoids_cache:
            return PrefixHits()
        return self._cache.match(seq, self.block_size, neighbour=self._neighbour)

    def num_blocks_needed(self, seq: Sequence, hits: PrefixHits) -> int:
        """Return how many free blocks `allocate` takes for the sequence's known tokens."""
        ref_counts = self._ref_counts
        others = hits.block_ids[hits.num_held :]
        num_idle_hits = sum([ref_counts[block_id] == 0 for block_id in others])
        return self.num_blocks_of(seq.num_tokens) - len(hits) + num_idle_hits

    def allocate(self, seq: Sequence, hits: PrefixHits) -> int:
        """Give a sequence without blocks the hits, then fresh blocks for its known tokens.

        Returns:
            Known tokens at its beginning that need not be computed: those of the hits, and those
            that are copied into the first fresh block by the step in which it is admitted.
        """
        assert not seq.block_table, "blocks are allocated once per admission"
        self._acquire(hits.block_ids)
        seq.block_table.extend(hits.block_ids)
        seq.prefix_entry_ids += hits.entry_ids
        self._neighbour = seq
        num_fresh = self.num_blocks_of(seq.num_tokens) - len(hits)
        source, num_copied = self._hold_source(seq, num_fresh)
        self.append_blocks(seq, num_fresh)
        if source is not None:
            self._copies.append(BlockCopy(source, seq.block_table[len(hits)], num_copied))
        return len(hits) * self.block_size + num_copied

    def take_copies(self) -> list[BlockCopy]:
        """Return the copies that the sequences allocated since the last call count on.

        To be called when a step is complete that admits these sequences, and makes the copies.
        Afterwards the sources may be given away: to later steps, which write after this one.
        """
        copies, self._copies = self._copies, []
        self._release([copy.source for copy in copies])
        return copies

    def append_blocks(self, seq: Sequence, num_blocks: int) -> None:
        """Give the sequence fresh blocks; the caller has checked that so many are free."""
        block_ids = self._free_blocks.pop_oldest(num_blocks)
        for block_id in block_ids:
            if self._cache.of_block(block_id) is not None:
                self._forget(block_id)
            self._ref_counts[block_id] = 1
        seq.block_table.extend(block_ids)

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
        self._cache.publish(seq, end, block_size=block_size, forget=self._forget)
        return len(seq.prefix_entry_ids) > num_before

    def withdraw(self, seq: Sequence, num_entries: int) -> None:
        """Make sure that nobody else finds the sequence's blocks after its first num_entries.

        Those that others hold stay with them, whoever published them.
        """
        for index in range(num_entries, len(seq.prefix_entry_ids)):
            block_id = seq.block_table[index]
            entry = self._cache.of_block(block_id)
            if entry is not None and entry.entry_id == seq.prefix_entry_ids[index]:
                self._forget(block_id)
        del seq.prefix_entry_ids[num_entries:]

    def free(self, seq: Sequence) -> None:
        """Give back all blocks of the sequence, the last one first."""
        self._release(reversed(seq.block_table))
        del seq.block_table[:]
        seq.prefix_entry_ids.clear()

    def reset_prefix_cache(self) -> None:
        """Forget all published content; no sequence may hold a block.

        Blocks are handed out afterwards as from a new pool.
        """
        assert self.num_free_blocks == self.num_blocks, "a block is held"
        self._free_blocks = FreeBlockQueue(self.num_blocks)
        self._cache.clear()
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
        assert self._num_cached == sum(map(bool, map(self._cache.of_block, free)))
        assert not self._copies, "copies that no step makes"
        self._cache.check_integrity()

    def _hold_source(self, seq: Sequence, num_fresh: int) -> tuple[int | None, int]:
        """Find the block whose beginning continues the hits, and keep it from being given away.

        Args:
            seq: The sequence, whose hits are allocated.
            num_fresh: Blocks that it needs besides.

        Returns:
            The block, and how many tokens of it; None and 0 if none is worth it.
        """
        num_found = len(seq.block_table) * self.block_size
        # Whole blocks are hits, and the last token is computed in any case: its logits are wanted.
        num_wanted = min(self.block_size, seq.num_tokens - num_found) - 1
        if num_wanted < self._min_copied_tokens or seq.avoids_cache:
            return None, 0
        token_bytes = seq.token_bytes(num_found, num_found + num_wanted)
        entry, num_tokens = self._cache.copy_sources.find(_last_entry_id(seq), token_bytes)
        if entry is None or num_tokens < self._min_copied_tokens:
            return None, 0
        if self._ref_counts[entry.block_id] == 0 and len(self._free_blocks) == num_fresh:
            return None, 0
        self._acquire([entry.block_id])
        return entry.block_id, num_tokens

    def _forget(self, block_id: int) -> None:
        self._num_cached -= self._ref_counts[block_id] == 0
        self._cache.remove(block_id)

    def _acquire(self, block_ids: Iterable[int]) -> None:
        ref_counts = self._ref_counts
        for block_id in block_ids:
            count = ref_counts[block_id]
            ref_counts[block_id] = count + 1
            if count > 1:
                continue
            if count == 1:
                self._num_shared += 1
            else:
                self._free_blocks.remove(block_id)
                self._num_cached -= 1

    def _release(self, block_ids: Iterable[int]) -> None:
        ref_counts = self._ref_counts
        for block_id in block_ids:
            count = ref_counts[block_id] - 1
            ref_counts[block_id] = count
            if count > 1:
                continue
            if count == 1:
                self._num_shared -= 1
            elif self._cache.of_block(block_id) is None:
                # Nothing is lost by reusing it before blocks whose content may be asked for again.
                self._free_blocks.push_oldest(block_id)
            else:
                self._num_cached += 1
                self._free_blocks.push_newest(block_id)


def _last_entry_id(seq: Sequence) -> int:
    return seq.prefix_entry_ids[-1] if seq.prefix_entry_ids else ROOT_ENTRY_ID
