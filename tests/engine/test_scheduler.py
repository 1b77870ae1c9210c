"""The scheduler's rules, one by one; test_random_scheduling.py checks them all together."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import SchedulerOutput
from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.request import SamplingParams
from tests.engine.fake_model import FakeLanguage, FakeModelRunner, Loop


@dataclass
class Bench:
    """A scheduler with a tiny pool whose steps are completed by hand, token 1 everywhere."""

    num_blocks: int = 16
    block_size: int = 4
    max_num_seqs: int = 8
    budget: int = 64
    in_flight: list[SchedulerOutput] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.manager = BlockManager(self.num_blocks, self.block_size)
        # A prior of one token admits whatever fits now, so that growth leads to preemption.
        self.scheduler = Scheduler(
            self.manager,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            prior_output_tokens=1,
        )

    def add(
        self, seq_id: int, prompt: list[int], max_tokens: int = 20, priority: int = 0
    ) -> Sequence:
        seq = Sequence(
            seq_id,
            np.array(prompt, dtype=np.int32),
            params=SamplingParams(),
            max_tokens=max_tokens,
            priority=priority,
        )
        self.scheduler.add(seq)
        return seq

    def launch(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        assert output is not None
        self.in_flight.append(output)
        self.scheduler.check_integrity()
        return output

    def read(self) -> list[tuple[int, int | None]]:
        output = self.in_flight.pop(0)
        num_sampled = len(output.sampled)
        sampled = self.scheduler.complete(
            output,
            np.ones(num_sampled, dtype=np.int32),
            is_nan=np.zeros(num_sampled, dtype=np.bool_),
        )
        for seq, _ in sampled:
            if len(seq.output_token_ids) == seq.max_tokens:
                self.scheduler.finish(seq)
        return [(seq.seq_id, token_id) for seq, token_id in sampled]

    def step(self) -> SchedulerOutput:
        output = self.launch()
        self.read()
        return output


def chunks(output: SchedulerOutput) -> list[tuple[int, int, int]]:
    return [(chunk.sequence.seq_id, chunk.start, chunk.num_tokens) for chunk in output.chunks]


def ids(seqs: list[Sequence]) -> list[int]:
    return [seq.seq_id for seq in seqs]


def test_prompts_fill_the_budget_and_the_last_one_is_cut() -> None:
    bench = Bench(budget=8)
    bench.add(0, [1] * 3)
    bench.add(1, [2] * 7)
    bench.add(2, [3] * 2)
    first = bench.step()
    assert chunks(first) == [(0, 0, 3), (1, 0, 5)]
    assert ids(first.sampled) == [0], "an unfinished prompt samples nothing"
    second = bench.step()
    assert ids(second.decoding) == [0]
    assert chunks(second) == [(1, 5, 2), (2, 0, 2)]
    assert ids(second.sampled) == [0, 1, 2]
    assert (second.num_tokens, second.num_prefill_tokens) == (5, 4)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 64])
def test_a_prompt_that_fits_the_pool_runs_whatever_the_budget(budget: int) -> None:
    language = FakeLanguage(eos_one_in=None)
    manager = BlockManager(8, 4)
    loop = Loop(
        Scheduler(manager, max_num_seqs=4, max_num_batched_tokens=budget),
        FakeModelRunner(8, 4, max_num_seqs=4, language=language),
    )
    prompt = list(range(1, 31))
    seq = Sequence(0, np.array(prompt, dtype=np.int32), params=SamplingParams(), max_tokens=3)
    loop.run([seq])
    assert loop.outputs == {0: language.continue_alone(prompt, 3)}


def test_a_prompt_that_fills_the_pool_yields_its_one_token() -> None:
    bench = Bench(num_blocks=2)
    bench.add(0, [1] * 8, max_tokens=1)
    assert ids(bench.step().sampled) == [0]
    assert bench.scheduler.schedule() is None


def test_a_sequence_that_could_outgrow_the_pool_is_refused() -> None:
    with pytest.raises(AssertionError, match="exceeds the KV pool"):
        Bench(num_blocks=2).add(0, [1] * 8, max_tokens=2)


def test_decoding_beyond_the_budget_goes_by_age_and_ends() -> None:
    bench = Bench(budget=2)
    for seq_id in range(2):
        bench.add(seq_id, [seq_id + 1], max_tokens=4)
    bench.step()
    bench.add(2, [9], max_tokens=4)
    order = []
    while (output := bench.scheduler.schedule()) is not None:
        bench.in_flight.append(output)
        order.append(ids([*output.decoding, *(chunk.sequence for chunk in output.chunks)]))
        bench.read()
    assert order == [[0, 1], [0, 1], [0, 1], [2], [2], [2], [2]]


def test_blocks_published_in_a_step_are_found_in_the_same_step() -> None:
    bench = Bench()
    bench.add(0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = bench.add(1, [1, 2, 3, 4, 5, 6, 7, 8, 10, 11])
    assert chunks(bench.step()) == [(0, 0, 9), (1, 8, 2)]
    assert second.num_cached_tokens == 8
    assert bench.manager.num_shared_blocks == 2


def test_whoever_shares_an_unfinished_prompt_waits_for_it() -> None:
    bench = Bench(budget=6)
    bench.add(0, [1] * 10)
    bench.add(1, [1] * 10 + [2])
    assert chunks(bench.step()) == [(0, 0, 6)]
    assert chunks(bench.step()) == [(0, 6, 4), (1, 8, 2)]
    assert chunks(bench.step()) == [(1, 10, 1)]


def test_a_fully_cached_prompt_computes_one_token() -> None:
    bench = Bench()
    bench.add(0, [1, 2, 3, 4, 5, 6, 7, 8])
    twin = bench.add(1, [1, 2, 3, 4, 5, 6, 7, 8])
    output = bench.step()
    assert chunks(output) == [(0, 0, 8), (1, 7, 1)]
    assert ids(output.sampled) == [0, 1]
    assert twin.num_cached_tokens == 7
    assert list(twin.block_table) == [0, 1]


def test_an_unfinished_prompt_skips_what_others_publish_meanwhile() -> None:
    bench = Bench(budget=3)
    writer = bench.add(0, [1, 1, 1], max_tokens=14)  # its output makes it a run of ones
    for _ in range(4):
        bench.step()
    late = bench.add(1, [1] * 14)
    assert chunks(bench.step()) == [(1, 4, 2)]
    assert late.block_table[1] != writer.block_table[1]
    assert chunks(bench.step()) == [(1, 8, 2)], "its second block was published by the first"
    assert late.block_table[1] == writer.block_table[1]
    assert late.num_cached_tokens == 4, "counted at admission"


def test_generated_blocks_are_published_once_their_tokens_are_known() -> None:
    bench = Bench()
    bench.add(0, [5, 6, 7], max_tokens=10)
    for _ in range(3):
        bench.step()
    probe = Sequence(
        9, np.array([5, 6, 7, 1, 1], dtype=np.int32), params=SamplingParams(), max_tokens=1
    )
    assert len(bench.manager.match_prefix(probe)) == 1
    running_ahead = Bench()
    running_ahead.add(0, [5, 6, 7], max_tokens=10)
    running_ahead.launch()
    running_ahead.launch()
    assert running_ahead.manager.match_prefix(probe) == [], "the token after 7 is not known yet"
    running_ahead.read()
    running_ahead.launch()
    assert len(running_ahead.manager.match_prefix(probe)) == 1


def bench_before_preemption() -> tuple[Bench, Sequence, Sequence]:
    """Return two sequences that hold 10 tokens each; no block is left when they have 12."""
    bench = Bench(num_blocks=6)
    first, second = bench.add(0, [1] * 7, max_tokens=17), bench.add(1, [2] * 7, max_tokens=17)
    for _ in range(4):
        bench.step()
    assert [seq.num_computed_tokens for seq in (first, second)] == [10, 10]
    return bench, first, second


def test_the_newest_sequence_is_preempted_and_goes_to_the_front() -> None:
    bench, first, second = bench_before_preemption()
    bench.step()
    bench.step()
    bench.add(2, [3] * 2, max_tokens=1)
    assert ids(bench.step().decoding) == [0]
    assert second.status is SequenceStatus.WAITING
    assert (second.slot, len(second.block_table), second.num_computed_tokens) == (None, 0, 0)
    assert second.output_token_ids == [1] * 6, "a preempted sequence keeps its tokens"
    while first.status is not SequenceStatus.FINISHED:
        assert bench.step().admitted == []
    assert ids(bench.step().admitted)[:1] == [1]
    assert bench.scheduler.stats().num_preemptions == 1


def test_recomputed_tokens_are_counted_without_those_found_in_the_cache() -> None:
    bench, first, second = bench_before_preemption()
    for _ in range(3):
        bench.step()
    assert (second.status, second.num_lost_tokens) == (SequenceStatus.WAITING, 12)
    bench.scheduler.abort(first)
    assert chunks(bench.step()) == [(1, 8, 5)]
    assert bench.scheduler.stats().num_preempted_tokens == 12 - 8
    assert second.num_cached_tokens == 0, "cached tokens are those of the first admission"


def test_prefill_never_preempts() -> None:
    bench = Bench(num_blocks=4)
    bench.add(0, [1] * 9, max_tokens=3)
    bench.step()
    big = bench.add(1, [2] * 9, max_tokens=3)
    bench.step()
    assert big.status is SequenceStatus.WAITING
    assert bench.scheduler.stats().num_preemptions == 0


def test_steps_run_ahead_up_to_max_tokens_and_no_further() -> None:
    bench = Bench()
    seq = bench.add(0, [1, 2], max_tokens=3)
    for num_in_flight in (1, 2, 3):
        bench.launch()
        assert seq.num_in_flight == num_in_flight
    assert bench.scheduler.schedule() is None
    assert [bench.read() for _ in range(3)] == [[(0, 1)], [(0, 1)], [(0, 1)]]
    assert seq.status is SequenceStatus.FINISHED
    assert bench.manager.num_free_blocks == bench.num_blocks


def test_tokens_of_a_finished_sequence_that_are_still_in_flight_are_dropped() -> None:
    bench = Bench()
    seq = bench.add(0, [1, 2])
    bench.launch()
    bench.launch()
    bench.read()
    bench.scheduler.finish(seq)
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
        assert bench.read() == [(1, 1)]
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
    bench.scheduler.finish(seq)
    bench.scheduler.check_integrity()
    stats = bench.scheduler.stats()
    assert stats.num_waiting + stats.num_running == 1
    assert [seq_id for _ in range(num_launched) for seq_id, _ in bench.read()] == [0] * num_launched


def test_slots_are_assigned_on_admission_and_reused() -> None:
    bench = Bench(max_num_seqs=2)
    seqs = [bench.add(seq_id, [seq_id + 1], max_tokens=1 + seq_id) for seq_id in range(3)]
    first = bench.launch()
    assert ids(first.admitted) == [0, 1]
    assert [seq.slot for seq in seqs] == [0, 1, None]
    bench.read()
    second = bench.launch()
    assert ids(second.admitted) == [2]
    assert [seq.slot for seq in seqs] == [None, 1, 0]


def test_higher_priority_is_admitted_first_then_first_come_first_served() -> None:
    bench = Bench()
    for seq_id, priority in enumerate([0, 5, 0, 5]):
        bench.add(seq_id, [seq_id + 1], priority=priority)
    assert ids(bench.step().admitted) == [1, 3, 0, 2]


def test_logits_that_are_not_numbers_give_no_token() -> None:
    bench = Bench()
    good, bad = bench.add(0, [1, 2]), bench.add(1, [3, 4])
    output = bench.launch()
    sampled = bench.scheduler.complete(
        output,
        np.array([7, 8], dtype=np.int32),
        is_nan=np.array([False, True]),
        logprobs=np.array([-0.5, np.nan], dtype=np.float32),
    )
    assert sampled == [(good, 7), (bad, None)]
    assert (good.output_token_ids, good.logprobs) == ([7], [-0.5])
    assert (bad.output_token_ids, bad.logprobs) == ([], [])


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
    assert ids(again.decoding) == ids(expected.decoding)
    assert ids(again.sampled) == ids(expected.sampled)
    assert {seq_id for seq_id, _, _ in chunks(again)} == {s for s, _, _ in chunks(expected)}


def test_publications_of_an_undone_step_are_withdrawn() -> None:
    bench = Bench()
    bench.add(0, [1] * 9)
    output = bench.scheduler.schedule()
    assert output is not None
    bench.scheduler.rollback(output)
    probe = Sequence(9, np.ones(9, dtype=np.int32), params=SamplingParams(), max_tokens=1)
    assert bench.manager.match_prefix(probe) == []
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
