"""Running sequences are listed so that those which share blocks are neighbours."""

import itertools
import random
import tracemalloc
from array import array

import numpy as np
import pytest

from nanobatch.engine.common_prefix import num_common_tokens, num_common_words
from nanobatch.engine.sequence import Sequence
from nanobatch.engine.sharing_order import SharingOrder
from nanobatch.request import SamplingParams


def sequence(seq_id: int, table: list[int], *, num_hits: int = 0) -> Sequence:
    seq = Sequence(seq_id, np.arange(1, 5, dtype=np.int32), params=SamplingParams(), max_tokens=1)
    seq.block_table = array("i", table)
    seq.prefix_entry_ids = [1 + place for place in range(num_hits)]
    return seq


def common(one: Sequence, other: Sequence) -> int:
    num_blocks = 0
    for a, b in zip(one.block_table, other.block_table, strict=False):
        if a != b:
            break
        num_blocks += 1
    return num_blocks


def check(order: SharingOrder, seqs: list[Sequence]) -> None:
    rows, num_shared = order.arrange(seqs)
    assert sorted(rows) == list(range(len(seqs)))
    listed = [seqs[row] for row in rows]
    expected = [0, *(common(a, b) for a, b in itertools.pairwise(listed))]
    expected = expected[: len(seqs)]
    assert num_shared.tolist() == expected
    # Neighbours of a sequence have at least as much in common with it as those farther away.
    for place in range(len(listed)):
        counts = [common(listed[place], other) for other in listed[place + 1 :]]
        assert counts == sorted(counts, reverse=True)


def test_sharers_become_neighbours_at_every_depth() -> None:
    tables = [[1, 2, 3], [9, 8], [1, 2, 4], [1, 5], [9, 7], [1, 2, 3, 6]]
    seqs = [sequence(i, table, num_hits=1) for i, table in enumerate(tables)]
    order = SharingOrder()
    for seq in seqs:
        order.enter(seq)
    check(order, seqs)
    _rows, num_shared = order.arrange(seqs)
    assert sorted(num_shared.tolist()) == [0, 0, 1, 1, 2, 3]


def test_without_hits_the_order_is_that_of_arrival() -> None:
    seqs = [sequence(i, [5 - i]) for i in range(5)]
    order = SharingOrder()
    for seq in seqs:
        order.enter(seq)
    rows, num_shared = order.arrange(seqs)
    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert num_shared.tolist() == [0] * 5


def test_nothing_is_kept_of_sequences_that_have_left() -> None:
    """Also where nobody ever shares, so that no order is ever made."""
    order, seqs = SharingOrder(), [sequence(i, [*range(300)]) for i in range(500)]
    tracemalloc.start()
    try:
        for seq in seqs:
            order.enter(seq)
            order.arrange([seq])
            order.leave(seq)
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes < 50 * 4 * 300


@pytest.mark.parametrize("seed", range(20))
def test_random_comings_and_goings(seed: int) -> None:
    random_ = random.Random(seed)
    order, running, num_seqs, next_block = SharingOrder(), dict[int, Sequence](), 0, 0
    # What a sequence generates is published when it leaves: nobody shares it while it runs.
    published: dict[int, list[int]] = {}
    for _ in range(120):
        action = random_.random()
        if action < 0.55 or not running:
            base = random_.choice([*running.values()]) if running else None
            prompt = published[base.seq_id] if base else []
            hits = prompt[: random_.randrange(len(prompt) + 1)]
            fresh = range(next_block, next_block + random_.choice([1, 2, 300]))
            next_block = fresh.stop
            seq = sequence(num_seqs, [*hits, *fresh], num_hits=len(hits))
            num_seqs += 1
            running[seq.seq_id] = seq
            published[seq.seq_id] = [*seq.block_table]
            order.enter(seq)
        elif action < 0.8:
            order.leave(running.pop(random_.choice([*running])))
        elif action < 0.9:  # preempted and admitted again, with other blocks
            seq = running.pop(random_.choice([*running]))
            order.leave(seq)
            again = sequence(seq.seq_id, [next_block], num_hits=0)
            next_block += 1
            running[seq.seq_id] = again
            published[seq.seq_id] = [*again.block_table]
            order.enter(again)
        else:  # tables grow at their ends
            random_.choice([*running.values()]).block_table.append(next_block)
            next_block += 1
        if random_.random() < 0.5:
            check(order, [seq for seq in running.values() if random_.random() < 0.9])


def test_common_words_are_counted_whole() -> None:
    def packed(*blocks: int) -> bytes:
        return array("i", blocks).tobytes()

    assert num_common_words(packed(1, 256), packed(1, 257)) == 1
    assert num_common_words(packed(1, 256), packed(1, 512)) == 1  # three bytes are equal
    assert num_common_words(packed(), packed(1)) == 0
    assert num_common_words(packed(1, 2, 3), packed(1, 2)) == 2
    long = list(range(1000))
    for place in (0, 1, 499, 998, 999):
        other = [*long]
        other[place] = -1
        assert num_common_words(packed(*long), packed(*other)) == place


def test_common_tokens_are_counted_up_to_the_first_difference() -> None:
    tokens = np.arange(1000, dtype=np.int32)
    assert num_common_tokens(tokens, tokens.copy()) == 1000
    assert num_common_tokens(tokens[:0], tokens[:0]) == 0
    for place in (0, 1, 499, 998, 999):
        other = tokens.copy()
        other[place:] += 1
        assert num_common_tokens(tokens, other) == place
