"""Steps in flight: run-ahead, drains, aborts, and steps that were never launched."""

from collections.abc import Callable

import numpy as np
import pytest

from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.engine.step_batch import SampledTokens
from nanobatch.request import SamplingParams
from tests.engine.fake_model import ending_by_tokens
from tests.engine.scheduler_bench import (
    Bench,
    admitted,
    bench_before_preemption,
    chunks,
    decoding,
    ids,
)


def test_steps_run_ahead_up_to_max_tokens_and_no_further() -> None:
    bench = Bench()
    seq = bench.add(0, [1, 2], max_tokens=3)
    for num_in_flight in (1, 2, 3):
        bench.launch()
        assert seq.num_in_flight == num_in_flight
    assert bench.scheduler.schedule() is None
    assert [bench.read() for _ in range(3)] == [[0], [0], [0]]
    assert seq.status is SequenceStatus.FINISHED
    assert bench.manager.num_free_blocks == bench.num_blocks


def test_tokens_of_a_finished_sequence_that_are_still_in_flight_are_dropped() -> None:
    bench = Bench()
    seq = bench.add(0, [1, 2])
    bench.launch()
    bench.launch()
    bench.read()
    bench.scheduler.abort(seq)
    assert bench.read() == []
    assert seq.output_token_ids == [1]
    assert seq.num_in_flight == 0


def test_a_preempted_sequence_drains_before_it_returns() -> None:
    bench, first, second = bench_before_preemption()
    for _ in range(3):
        bench.launch()
    assert (second.status, second.num_in_flight) == (SequenceStatus.WAITING, 2)
    bench.scheduler.abort(first)
    for _ in range(2):
        assert bench.scheduler.schedule() is None, "it is owed a token"
        assert bench.read() == [1]
    assert chunks(bench.launch()) == [(1, 8, 5)]
    assert second.output_token_ids == [1] * 6


@pytest.mark.parametrize("num_launched", [0, 1, 2])
def test_abort_is_safe_anywhere_and_twice(num_launched: int) -> None:
    bench = Bench(budget=6)
    bench.add(0, [1] * 3)
    seq = bench.add(1, [2] * 10)
    for _ in range(num_launched):
        bench.launch()
    bench.scheduler.abort(seq)
    bench.scheduler.abort(seq)
    bench.scheduler.check_integrity()
    stats = bench.scheduler.stats()
    assert stats.num_waiting + stats.num_running == 1
    # The second step is the rest of the prompt of the one that was aborted.
    assert [bench.read() for _ in range(num_launched)] == [[0], []][:num_launched]


def test_slots_are_assigned_on_admission_and_reused() -> None:
    bench = Bench(max_num_seqs=2)
    seqs = [bench.add(seq_id, [seq_id + 1], max_tokens=1 + seq_id) for seq_id in range(3)]
    first = bench.launch()
    assert admitted(first) == [0, 1]
    assert [seq.slot for seq in seqs] == [0, 1, None]
    bench.read()
    second = bench.launch()
    assert admitted(second) == [2]
    assert [seq.slot for seq in seqs] == [None, 1, 0]


def test_higher_priority_is_admitted_first_then_first_come_first_served() -> None:
    bench = Bench()
    for seq_id, priority in enumerate([0, 5, 0, 5]):
        bench.add(seq_id, [seq_id + 1], priority=priority)
    assert admitted(bench.step()) == [1, 3, 0, 2]


def test_logits_that_are_not_numbers_give_no_token() -> None:
    bench = Bench()
    good, bad = bench.add(0, [1, 2]), bench.add(1, [3, 4])
    output = bench.launch()
    sampled = SampledTokens(
        token_ids=np.array([[7, 8]], dtype=np.int32),
        is_nan=np.array([[False, True]]),
        logprobs=np.array([[-0.5, np.nan]], dtype=np.float32),
    )
    assert bench.scheduler.complete(output, sampled, find_ending=ending_by_tokens) == [(bad, None)]
    assert (good.output_token_ids, good.logprobs) == ([7], [-0.5])
    assert (bad.output_token_ids, bad.logprobs) == ([], [])
    assert (good.status, bad.status) == (SequenceStatus.RUNNING, SequenceStatus.FINISHED)


def make_hits(bench: Bench) -> None:
    bench.add(0, [1] * 9)
    bench.add(1, [1] * 9 + [2])


def make_decodes(bench: Bench) -> None:
    bench.add(0, [1] * 7)
    bench.step()


def make_unfinished_prompt(bench: Bench) -> None:
    bench.add(0, [1] * 3)
    bench.add(1, [2] * 70)
    bench.step()


def make_preemption(bench: Bench) -> None:
    bench.add(0, [1] * 31, max_tokens=30)
    bench.add(1, [2] * 31, max_tokens=30)
    for _ in range(18):
        bench.step()


@pytest.mark.parametrize(
    "prepare", [make_hits, make_decodes, make_unfinished_prompt, make_preemption]
)
def test_a_step_that_was_not_launched_can_be_undone(prepare: Callable[[Bench], None]) -> None:
    bench, undisturbed = Bench(num_blocks=24), Bench(num_blocks=24)
    prepare(bench)
    prepare(undisturbed)
    output = bench.scheduler.schedule()
    assert output is not None
    bench.scheduler.rollback(output)
    bench.scheduler.check_integrity()
    assert all(seq.num_in_flight == 0 for seq in output.sampled)
    again, expected = bench.launch(), undisturbed.launch()
    assert decoding(again) == decoding(expected)
    assert ids(again.sampled) == ids(expected.sampled)
    assert {seq_id for seq_id, _, _ in chunks(again)} == {s for s, _, _ in chunks(expected)}


def test_publications_of_an_undone_step_are_withdrawn() -> None:
    bench = Bench()
    bench.add(0, [1] * 9)
    output = bench.scheduler.schedule()
    assert output is not None
    bench.scheduler.rollback(output)
    probe = Sequence(9, np.ones(9, dtype=np.int32), params=SamplingParams(), max_tokens=1)
    assert len(bench.manager.match_prefix(probe)) == 0
    assert bench.manager.num_cached_blocks == 0
    assert chunks(bench.step()) == [(0, 0, 9)]


def test_only_the_latest_step_can_be_undone() -> None:
    bench = Bench()
    bench.add(0, [1] * 9)
    first = bench.launch()
    bench.launch()
    with pytest.raises(AssertionError, match="only the latest step"):
        bench.scheduler.rollback(first)


def test_first_admissions_are_counted_once() -> None:
    bench = Bench(num_blocks=4)
    bench.add(0, [1] * 7, max_tokens=9)
    bench.add(1, [1] * 7, max_tokens=9)
    while bench.scheduler.stats().num_running + bench.scheduler.stats().num_waiting:
        bench.step()
    stats = bench.scheduler.stats()
    assert stats.num_admitted_prompt_tokens == 14
    assert stats.num_cached_prompt_tokens == 4
