"""Blocks whose content is worthless: taken out of the cache, and their users begin again."""

import numpy as np

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.cache_entry import PrefixHits
from nanobatch.engine.scheduler_output import SchedulerOutput
from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.engine.stopping import Ending
from nanobatch.request import SamplingParams
from tests.engine.fake_model import ending_by_tokens, sampled_tokens
from tests.engine.scheduler_bench import Bench, bench_before_preemption, chunks

BLOCK = 4


def sequence(tokens: list[int]) -> Sequence:
    return Sequence(0, np.array(tokens, dtype=np.int32), params=SamplingParams(), max_tokens=1)


def read_nan(bench: Bench, *, nan_ids: list[int]) -> list[tuple[int, Ending | None]]:
    """Complete the oldest step, in whose last tokens these sequences have NaN."""
    output: SchedulerOutput = bench.in_flight.pop(0)
    steps: list[list[int | None]] = [[1] * len(output.sampled) for _ in range(output.num_steps)]
    steps[-1] = [None if seq.seq_id in nan_ids else 1 for seq in output.sampled]
    ended = bench.scheduler.complete(output, sampled_tokens(steps), find_ending=ending_by_tokens)
    bench.scheduler.check_integrity()
    bench.scheduler.clear_up()
    return [(seq.seq_id, ending) for seq, ending in ended]


def test_withdrawn_publications_are_not_found() -> None:
    manager = BlockManager(8, BLOCK)
    seq = sequence([1] * 12)
    manager.allocate(seq, PrefixHits())
    manager.publish(seq, 4)
    manager.publish(seq, 12)
    manager.withdraw(seq, 1)
    assert len(manager.match_prefix(sequence([1] * 12))) == 1
    manager.check_integrity([seq])
    assert manager.publish(seq, 12)
    assert len(manager.match_prefix(sequence([1] * 12))) == 3


def test_what_was_published_below_a_withdrawn_entry_gives_way_to_its_like() -> None:
    manager = BlockManager(16, BLOCK)
    owner, other, heir = sequence([1] * 12), sequence([1] * 4 + [2]), sequence([1] * 16)
    manager.allocate(owner, PrefixHits())
    manager.publish(owner, 12)
    manager.allocate(other, manager.match_prefix(other))
    manager.withdraw(other, 0)
    assert len(manager.match_prefix(sequence([1] * 12))) == 0
    manager.check_integrity([owner, other])
    manager.free(owner)
    assert manager.num_cached_blocks == 2
    manager.allocate(heir, PrefixHits())
    manager.publish(heir, 12)
    manager.check_integrity([heir, other])
    hits = manager.match_prefix(sequence([1] * 12))
    assert list(hits.block_ids) == list(heir.block_table[:3])
    assert manager.num_cached_blocks == 0


def test_nothing_is_published_below_a_withdrawn_entry() -> None:
    manager = BlockManager(16, BLOCK)
    owner, other = sequence([1] * 8), sequence([1] * 4 + [2])
    manager.allocate(owner, PrefixHits())
    manager.publish(owner, 4)
    manager.allocate(other, manager.match_prefix(other))
    manager.withdraw(other, 0)
    assert not manager.publish(owner, 8)
    manager.check_integrity([owner, other])


def test_a_sequence_that_avoids_the_cache_neither_finds_nor_publishes() -> None:
    manager = BlockManager(8, BLOCK)
    first, second = sequence([1] * 8), sequence([1] * 8)
    manager.allocate(first, PrefixHits())
    second.avoids_cache = True
    assert not manager.publish(second, 8)
    manager.publish(first, 8)
    assert len(manager.match_prefix(second)) == 0


def test_who_took_blocks_of_a_failed_sequence_begins_again_with_its_own() -> None:
    bench = Bench()
    bench.add(0, [2] * 9)
    victim = bench.add(1, [2] * 9 + [3])
    assert chunks(bench.launch()) == [(0, 0, 9), (1, 8, 2)]
    assert read_nan(bench, nan_ids=[0, 1]) == [(0, None)]
    assert victim.status is SequenceStatus.WAITING
    assert bench.manager.num_cached_blocks == 0
    late = bench.add(2, [2] * 9 + [4])
    assert chunks(bench.step()) == [(1, 0, 10), (2, 0, 10)], "both compute it for themselves"
    assert victim.output_token_ids == late.output_token_ids == [1]
    stats = bench.scheduler.stats()
    assert (stats.num_preemptions, stats.num_preempted_tokens) == (0, 0)


def test_who_copied_from_a_failed_sequence_begins_again_with_its_own() -> None:
    bench = Bench(block_size=8)
    bench.add(0, [2] * 5 + [4] * 3)
    victim = bench.add(1, [2] * 5 + [3])
    assert chunks(bench.launch()) == [(0, 0, 8), (1, 5, 1)]
    assert read_nan(bench, nan_ids=[0, 1]) == [(0, None)]
    assert victim.status is SequenceStatus.WAITING
    assert chunks(bench.step()) == [(1, 0, 6)]


def test_who_fails_with_blocks_of_its_own_ends() -> None:
    bench = Bench()
    bench.add(0, [2] * 9)
    bench.step()
    seq = bench.add(1, [2] * 9 + [3])
    bench.launch()
    assert read_nan(bench, nan_ids=[1]) == []
    assert chunks(bench.launch()) == [(1, 0, 10)]
    assert read_nan(bench, nan_ids=[1]) == [(1, None)]
    assert (seq.status, seq.output_token_ids) == (SequenceStatus.FINISHED, [])


def test_what_a_failed_sequence_is_still_owed_is_dropped_and_what_it_has_is_kept() -> None:
    bench = Bench(num_decode_steps=3)
    bench.add(0, [2] * 8)
    bench.step()
    seq = bench.add(1, [2] * 8 + [3])
    bench.step()
    for _ in range(2):
        bench.launch()
    assert read_nan(bench, nan_ids=[1]) == []
    assert (seq.output_token_ids, seq.num_in_flight) == ([1, 1, 1], 3)
    assert read_nan(bench, nan_ids=[]) == []
    assert (seq.output_token_ids, seq.num_in_flight) == ([1, 1, 1], 0)
    assert chunks(bench.launch()) == [(1, 0, 12)]
    bench.launch()
    bench.read()
    bench.read()
    assert seq.output_token_ids == [1] * 7


def test_a_preempted_sequence_that_fails_before_its_return_begins_again() -> None:
    bench, first, second = bench_before_preemption()
    second.has_cached_blocks = True
    for _ in range(3):
        bench.launch()
    assert (second.status, second.num_in_flight) == (SequenceStatus.WAITING, 2)
    bench.scheduler.abort(first)
    assert read_nan(bench, nan_ids=[1]) == []
    assert read_nan(bench, nan_ids=[]) == []
    assert chunks(bench.launch()) == [(1, 0, 11)], "nothing of its own beginning is found"
    assert second.output_token_ids == [1] * 4
    assert bench.scheduler.stats().num_preemptions == 1


def test_a_sequence_that_begins_again_can_be_aborted() -> None:
    bench = Bench()
    bench.add(0, [2] * 8)
    bench.step()
    seq = bench.add(1, [2] * 8 + [3])
    bench.launch()
    bench.launch()
    assert read_nan(bench, nan_ids=[1]) == []
    bench.scheduler.abort(seq)
    assert bench.read() == [0]
    assert (seq.status, seq.num_in_flight) == (SequenceStatus.FINISHED, 0)
    bench.scheduler.check_integrity()
