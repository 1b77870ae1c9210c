"""Blocks that begin like a sequence goes on: which is found, and what is copied of it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.cache_entry import CacheEntry, PrefixHits
from nanobatch.engine.copy_sources import BlockCopy, CopySources
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams

BLOCK = 4


def sequence(tokens: list[int]) -> Sequence:
    return Sequence(0, np.array(tokens, dtype=np.int32), params=SamplingParams(), max_tokens=1)


def as_bytes(tokens: tuple[int, ...]) -> bytes:
    return np.array(tokens, dtype=np.int32).tobytes()


def num_equal(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    pairs = zip(tokens, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(others)))


def pool(num_blocks: int = 16) -> BlockManager:
    return BlockManager(num_blocks, BLOCK, min_copied_tokens=1)


def admit(manager: BlockManager, tokens: list[int]) -> tuple[Sequence, int]:
    """Allocate and publish a sequence; return it and its tokens that need not be computed."""
    seq = sequence(tokens)
    num_found = manager.allocate(seq, manager.match_prefix(seq))
    manager.publish(seq, seq.num_tokens)
    return seq, num_found


# Ids of more than one byte, whose order as bytes is another than as numbers.
some_tokens = st.tuples(*[st.sampled_from([1, 2, 256, 257, 2**24 + 1])] * BLOCK)


@given(st.data(), st.sets(st.tuples(st.integers(0, 2), some_tokens), max_size=30), some_tokens)
@settings(max_examples=200, deadline=None)
def test_the_longest_common_beginning_is_found(
    data: st.DataObject, blocks: set[tuple[int, tuple[int, ...]]], tokens: tuple[int, ...]
) -> None:
    sources = CopySources()
    entries = {
        (parent_id, block): CacheEntry(10 + number, number, b"", parent_id, as_bytes(block))
        for number, (parent_id, block) in enumerate(sorted(blocks))
    }
    for entry in data.draw(st.permutations(list(entries.values()))):
        sources.add(entry)
    gone = data.draw(st.sets(st.sampled_from(sorted(blocks)))) if blocks else set()
    for key in gone:
        sources.remove(entries.pop(key))
    sources.check_integrity(entries.values())
    wanted = tokens[: data.draw(st.integers(1, BLOCK))]
    for parent_id in range(3):
        lengths = {
            entry.entry_id: num_equal(block, wanted)
            for (parent, block), entry in entries.items()
            if parent == parent_id
        }
        entry_found, num_tokens = sources.find(parent_id, as_bytes(wanted))
        assert num_tokens == max(lengths.values(), default=0)
        assert num_tokens == (0 if entry_found is None else lengths[entry_found.entry_id])


def test_what_two_sequences_have_in_common_of_a_block_is_copied() -> None:
    manager = pool()
    first, num_found = admit(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    assert num_found == 0
    second, num_found = admit(manager, [1, 2, 3, 4, 5, 6, 9, 9, 9])
    assert num_found == 6
    source, destination = first.block_table[1], second.block_table[1]
    assert manager.take_copies() == [BlockCopy(source, destination, 2)]
    assert manager.take_copies() == []
    manager.check_integrity([first, second])


def test_the_last_token_is_not_copied_and_a_block_that_is_not_full_is_no_source() -> None:
    manager = pool()
    admit(manager, [1, 2, 3, 4, 5, 6])
    assert admit(manager, [1, 2, 3, 4, 5, 6, 7])[1] == 4
    admit(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    assert admit(manager, [1, 2, 3, 4, 5, 6])[1] == 5
    assert admit(manager, [1, 2, 3, 4, 5])[1] == 4


def test_fewer_tokens_than_are_worth_it_are_computed() -> None:
    manager = BlockManager(16, BLOCK, min_copied_tokens=3)
    admit(manager, [1, 2, 3, 4])
    assert admit(manager, [1, 2, 9, 9])[1] == 0
    assert admit(manager, [1, 2, 3, 9])[1] == 3


def test_nothing_is_copied_where_the_cache_is_off_or_avoided() -> None:
    without = BlockManager(16, BLOCK, enable_prefix_caching=False, min_copied_tokens=1)
    admit(without, [1, 2, 3, 4])
    assert admit(without, [1, 2, 9, 9])[1] == 0
    manager = pool()
    admit(manager, [1, 2, 3, 4])
    avoiding = sequence([1, 2, 9, 9])
    avoiding.avoids_cache = True
    assert manager.allocate(avoiding, manager.match_prefix(avoiding)) == 0
    assert manager.take_copies() == []


def test_a_source_is_given_to_nobody_before_its_copy_is_part_of_a_step() -> None:
    manager = pool(num_blocks=5)
    first, _ = admit(manager, [1, 2, 3, 4])
    source = first.block_table[0]
    manager.free(first)
    second, num_found = admit(manager, [1, 2, 9, 9])
    assert num_found == 2
    taken = sequence([7] * 12)
    manager.allocate(taken, PrefixHits())
    assert (manager.num_free_blocks, source in taken.block_table) == (0, False)
    manager.take_copies()
    assert (manager.num_free_blocks, manager.num_cached_blocks) == (1, 1)
    manager.check_integrity([second, taken])


def test_a_sequence_that_needs_every_block_copies_nothing_out_of_them() -> None:
    manager = pool(num_blocks=2)
    manager.free(admit(manager, [1, 2, 3, 4])[0])
    seq, num_found = admit(manager, [1, 2, 9, 9, 9, 9, 9, 9])
    assert num_found == 0
    manager.check_integrity([seq])


def test_a_block_that_others_hold_can_be_copied_when_no_other_is_free() -> None:
    manager = pool(num_blocks=2)
    admit(manager, [1, 2, 3, 4])
    assert admit(manager, [1, 2, 9, 9])[1] == 2
