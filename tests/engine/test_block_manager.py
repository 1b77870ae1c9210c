"""The KV pool: reference counts, order of reuse, prefix cache."""

import timeit
from collections import deque
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.cache_entry import PrefixHits
from nanobatch.engine.free_blocks import FreeBlockQueue
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams

BLOCK = 4


def sequence(tokens: list[int], seq_id: int = 0) -> Sequence:
    return Sequence(seq_id, np.array(tokens, dtype=np.int32), params=SamplingParams(), max_tokens=1)


def admit(manager: BlockManager, tokens: list[int]) -> Sequence:
    """Allocate a sequence as the scheduler does, and publish all of it."""
    seq = sequence(tokens)
    manager.allocate(seq, manager.match_prefix(seq))
    manager.publish(seq, seq.num_tokens)
    manager.take_copies()
    return seq


def constant_hash(_: bytes) -> bytes:
    return b"same"


def hash_tokens_only(joined: bytes) -> bytes:
    return joined[-4 * BLOCK :]


def test_fresh_blocks_are_consecutive() -> None:
    manager = BlockManager(8, BLOCK)
    assert list(admit(manager, [1] * 10).block_table) == [0, 1, 2]
    assert list(admit(manager, [2] * 5).block_table) == [3, 4]


def test_equal_beginnings_share_blocks() -> None:
    manager = BlockManager(8, BLOCK)
    first = admit(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = admit(manager, [1, 2, 3, 4, 5, 6, 7, 8, 10, 11])
    assert list(second.block_table[:2]) == list(first.block_table[:2])
    assert second.block_table[2] != first.block_table[2]
    assert (manager.num_shared_blocks, manager.num_used_blocks) == (2, 2)
    manager.check_integrity([first, second])


def test_a_reset_cache_knows_nothing_and_is_as_new() -> None:
    manager = BlockManager(8, BLOCK)
    for tokens in ([1] * 10, [2] * 9):
        manager.free(admit(manager, tokens))
    assert manager.num_cached_blocks == 4
    manager.reset_prefix_cache()
    assert (manager.num_cached_blocks, manager.num_free_blocks) == (0, 8)
    assert len(manager.match_prefix(sequence([1] * 10))) == 0
    again = admit(manager, [1] * 10)
    assert list(again.block_table) == [0, 1, 2]
    manager.check_integrity([again])


def test_blocks_are_not_shared_after_a_different_beginning() -> None:
    manager = BlockManager(8, BLOCK)
    admit(manager, [1, 1, 1, 1, 5, 6, 7, 8])
    assert len(manager.match_prefix(sequence([2, 2, 2, 2, 5, 6, 7, 8]))) == 0


def test_a_block_that_is_not_full_is_never_found() -> None:
    manager = BlockManager(8, BLOCK)
    admit(manager, [1, 2, 3])
    assert len(manager.match_prefix(sequence([1, 2, 3]))) == 0
    assert len(manager.match_prefix(sequence([1, 2, 3, 4]))) == 0


def test_without_prefix_caching_nothing_is_found() -> None:
    manager = BlockManager(8, BLOCK, enable_prefix_caching=False)
    seq = admit(manager, [1] * 8)
    assert len(manager.match_prefix(sequence([1] * 8))) == 0
    manager.free(seq)
    assert (manager.num_cached_blocks, manager.num_free_blocks) == (0, 8)


def test_freed_content_is_found_again_and_counted_as_cached() -> None:
    manager = BlockManager(8, BLOCK)
    seq = admit(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    blocks = list(seq.block_table)
    manager.free(seq)
    assert (manager.num_free_blocks, manager.num_cached_blocks) == (8, 2)
    again = sequence([1, 2, 3, 4, 5, 6, 7, 8, 9])
    hits = manager.match_prefix(again)
    assert list(hits.block_ids) == blocks[:2]
    assert manager.num_blocks_needed(again, hits) == 3
    manager.allocate(again, hits)
    assert (manager.num_free_blocks, manager.num_cached_blocks) == (5, 0)
    manager.check_integrity([again])


def test_last_block_of_the_oldest_sequence_is_reused_first() -> None:
    manager = BlockManager(4, BLOCK)
    first, second = admit(manager, [1] * 8), admit(manager, [2] * 8)
    first_blocks, second_blocks = list(first.block_table), list(second.block_table)
    manager.free(first)
    manager.free(second)
    taken = sequence([9] * 16)
    manager.allocate(taken, PrefixHits())
    assert list(taken.block_table) == [*reversed(first_blocks), *reversed(second_blocks)]


def test_blocks_without_content_are_reused_before_cached_ones() -> None:
    manager = BlockManager(4, BLOCK)
    cached = admit(manager, [1] * 8)
    private = sequence([2] * 8)
    manager.allocate(private, PrefixHits())
    manager.free(cached)
    manager.free(private)
    manager.allocate(sequence([9] * 8), PrefixHits())
    assert len(manager.match_prefix(sequence([1] * 8))) == 2


def test_reuse_takes_the_entry_out_of_the_cache() -> None:
    manager = BlockManager(2, BLOCK)
    manager.free(admit(manager, [1] * 8))
    other = admit(manager, [2] * 4)
    assert len(manager.match_prefix(sequence([1] * 8))) == 1
    manager.check_integrity([other])


def test_children_of_a_block_given_away_are_not_found_under_its_successor() -> None:
    manager = BlockManager(4, BLOCK, hash_function=hash_tokens_only)
    parent = admit(manager, [1, 1, 1, 1])
    # Its child in another sequence survives it, since that one has its own copy of the parent.
    child = sequence([1, 1, 1, 1, 5, 6, 7, 8])
    manager.allocate(child, PrefixHits())
    manager.publish(child, 8)
    manager.free(parent)
    successor = sequence([2, 2, 2, 2, 3])
    manager.allocate(successor, PrefixHits())
    manager.publish(successor, 4)
    assert len(manager.match_prefix(sequence([1, 1, 1, 1]))) == 0
    assert len(manager.match_prefix(sequence([2, 2, 2, 2, 5, 6, 7, 8]))) == 1
    manager.check_integrity([child, successor])


def test_colliding_hashes_never_make_a_wrong_hit() -> None:
    manager = BlockManager(8, BLOCK, hash_function=constant_hash)
    first = admit(manager, [1] * 8)
    assert len(first.prefix_entry_ids) == 1, "the second block collides and stays private"
    assert list(manager.match_prefix(sequence([1] * 8)).block_ids) == [first.block_table[0]]
    assert len(manager.match_prefix(sequence([2] * 8))) == 0
    second = admit(manager, [2] * 8)
    assert second.prefix_entry_ids == []
    manager.check_integrity([first, second])


def test_equal_tokens_after_another_parent_are_no_hit_although_hashes_collide() -> None:
    manager = BlockManager(8, BLOCK, hash_function=hash_tokens_only)
    admit(manager, [1, 1, 1, 1, 5, 6, 7, 8])
    admit(manager, [2, 2, 2, 2])
    hits = manager.match_prefix(sequence([2, 2, 2, 2, 5, 6, 7, 8]))
    assert len(hits) == 1


def test_content_held_twice_is_published_once() -> None:
    manager = BlockManager(8, BLOCK)
    first, twin = sequence([1] * 8), sequence([1] * 8)
    manager.allocate(first, PrefixHits())
    manager.allocate(twin, PrefixHits())
    manager.publish(first, 8)
    manager.publish(twin, 8)
    assert twin.prefix_entry_ids == first.prefix_entry_ids
    assert list(twin.block_table) != list(first.block_table)
    manager.free(twin)
    assert manager.num_cached_blocks == 0
    manager.check_integrity([first])


def test_hashes_are_computed_once_per_sequence() -> None:
    calls: list[bytes] = []

    def counting_hash(joined: bytes) -> bytes:
        calls.append(joined)
        return joined[-8:] + len(joined).to_bytes(4, "little")

    manager = BlockManager(64, BLOCK, hash_function=counting_hash)
    seq = sequence(list(range(100)))
    for _ in range(3):
        assert len(manager.match_prefix(seq)) == 0
    assert len(calls) == 1, "a lookup stops at the first block that is missing"
    manager.allocate(seq, PrefixHits())
    manager.publish(seq, 100)
    manager.free(seq)
    assert len(manager.match_prefix(seq)) == 25
    assert len(calls) == 25


def test_a_pool_without_a_free_block_refuses() -> None:
    manager = BlockManager(1, BLOCK)
    seq = admit(manager, [1])
    with pytest.raises(AssertionError, match="no free block"):
        manager.append_blocks(seq, 1)


def test_integrity_check_notices_a_lost_reference() -> None:
    manager = BlockManager(4, BLOCK)
    seq = admit(manager, [1] * 8)
    with pytest.raises(AssertionError, match="reference counts"):
        manager.check_integrity([])
    del seq.block_table[-1]
    with pytest.raises(AssertionError):
        manager.check_integrity([seq])


def test_cost_does_not_grow_with_the_pool() -> None:
    def seconds(num_blocks: int) -> float:
        manager = BlockManager(num_blocks, BLOCK)
        # Fill the cache, so that allocation evicts and hits leave the queue from its middle.
        for value in range(0, num_blocks, 16):
            manager.free(admit(manager, [value] * (16 * BLOCK)))

        def turn() -> None:
            for value in range(20):
                manager.free(admit(manager, [value] * (16 * BLOCK)))

        return min(timeit.repeat(turn, number=1, repeat=15))

    assert seconds(64_000) < 4 * seconds(1_600)


@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from("pron"), st.integers(0, 5))))
@settings(max_examples=200, deadline=None)
def test_free_queue_behaves_like_a_deque(num_blocks: int, moves: list[tuple[str, int]]) -> None:
    queue, model = FreeBlockQueue(num_blocks), deque(range(num_blocks))
    taken: list[int] = []
    for move, number in moves:
        if move == "p" and number <= len(model):
            oldest = [model.popleft() for _ in range(number)]
            assert queue.pop_oldest(number) == oldest
            taken += oldest
        elif move == "r" and model:
            block_id = model[number % len(model)]
            queue.remove(block_id)
            model.remove(block_id)
            taken.append(block_id)
        elif move == "o" and taken:
            model.appendleft(taken[-1])
            queue.push_oldest(taken.pop())
        elif move == "n" and taken:
            model.append(taken[-1])
            queue.push_newest(taken.pop())
        assert queue.check_integrity() == list(model)
        assert len(queue) == len(model)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=2, max_size=12),
    st.randoms(use_true_random=False),
)
@settings(max_examples=150, deadline=None)
def test_the_sequence_admitted_before_is_a_short_cut_to_the_same_hits(
    prompts: list[list[int]], random: Random
) -> None:
    manager, held = BlockManager(64, BLOCK), list[Sequence]()
    for tokens in prompts:
        with_neighbour, without = sequence(tokens), sequence(tokens)
        hits = manager.match_prefix(with_neighbour)
        found = manager._cache.match(without, BLOCK, neighbour=None)
        assert hits == found
        num_needed = manager.num_blocks_needed(without, found)
        assert manager.num_blocks_needed(with_neighbour, hits) == num_needed
        num_hashes = len(with_neighbour.block_hashes)
        assert num_hashes >= len(hits)
        assert with_neighbour.block_hashes == without.block_hashes[:num_hashes]
        held.append(admit(manager, tokens))
        if random.random() < 0.4:
            seq = held.pop(random.randrange(len(held)))
            if random.random() < 0.5:
                manager.withdraw(seq, 0)
            manager.free(seq)
        manager.check_integrity(held)
