"""What a step computes: budget, admission, prefix cache, preemption, slots."""

import numpy as np
import pytest

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.sequence import Sequence, SequenceStatus
from nanobatch.request import SamplingParams
from tests.engine.fake_language import FakeLanguage
from tests.engine.fake_model import (
    FakeModelRunner,
    Loop,
    ending_by_tokens,
    sampled_tokens,
)
from tests.engine.scheduler_bench import (
    Bench,
    admitted,
    bench_before_preemption,
    chunks,
    decoding,
    ids,
)


def test_prompts_fill_the_budget_and_the_last_one_is_cut() -> None:
    bench = Bench(budget=8)
    bench.add(0, [1] * 3)
    bench.add(1, [2] * 7)
    bench.add(2, [3] * 2)
    first = bench.step()
    assert chunks(first) == [(0, 0, 3), (1, 0, 5)]
    assert ids(first.sampled) == [0], "an unfinished prompt samples nothing"
    second = bench.step()
    assert chunks(second) == [(1, 5, 2), (2, 0, 2)], "an unfinished prompt goes on at once"
    assert ids(second.sampled) == [1, 2]
    assert second.num_tokens == 4
    third = bench.step()
    assert decoding(third) == [0, 1, 2]
    assert third.num_tokens == 3


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
    assert loop.output(seq) == language.continue_alone(prompt, 3)


def test_a_prompt_that_fills_the_pool_yields_its_one_token() -> None:
    bench = Bench(num_blocks=2)
    bench.add(0, [1] * 8, max_tokens=1)
    assert ids(bench.step().sampled) == [0]
    assert bench.scheduler.schedule() is None


def test_a_sequence_that_could_outgrow_the_pool_is_refused() -> None:
    with pytest.raises(AssertionError, match="exceeds the KV pool"):
        Bench(num_blocks=2).add(0, [1] * 8, max_tokens=2)


def test_the_budget_of_a_step_does_not_bound_decoding() -> None:
    bench = Bench(budget=2)
    for seq_id in range(5):
        bench.add(seq_id, [seq_id + 1], max_tokens=4)
    order = [chunks(bench.step()) for _ in range(3)]
    assert order == [[(0, 0, 1), (1, 0, 1)], [(2, 0, 1), (3, 0, 1)], [(4, 0, 1)]]
    assert [decoding(bench.step()) for _ in range(3)] == [[0, 1, 2, 3, 4]] * 3
    assert bench.scheduler.schedule() is None


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
    assert chunks(bench.step()) == [(1, 10, 1)], "its prompt ends before anything decodes"


def test_a_fully_cached_prompt_computes_one_token() -> None:
    bench = Bench()
    bench.add(0, [1, 2, 3, 4, 5, 6, 7, 8])
    twin = bench.add(1, [1, 2, 3, 4, 5, 6, 7, 8])
    output = bench.step()
    assert chunks(output) == [(0, 0, 8), (1, 7, 1)]
    assert ids(output.sampled) == [0, 1]
    assert twin.num_cached_tokens == 7
    assert list(twin.block_table) == [0, 1]


def test_generated_blocks_are_published_when_their_sequence_ends() -> None:
    bench = Bench()
    bench.add(0, [5, 6, 7], max_tokens=10)
    probe = Sequence(
        9, np.array([5, 6, 7, *[1] * 10], dtype=np.int32), params=SamplingParams(), max_tokens=1
    )
    for _ in range(9):
        bench.step()
        assert len(bench.manager.match_prefix(probe)) == 0, "nobody needs them before"
    bench.step()
    assert bench.scheduler.stats().num_running == 0
    assert len(bench.manager.match_prefix(probe)) == 12 // 4


@pytest.mark.parametrize(("num_kept", "num_blocks"), [(5, 1), (6, 2)])
def test_what_a_chunk_computed_after_an_end_is_not_published(
    num_kept: int, num_blocks: int
) -> None:
    """The device may have stopped at the end: not even the last token is sure to be stored."""
    bench = Bench(num_decode_steps=12)
    seq = bench.add(0, [5, 6, 7], max_tokens=13, eos_token_ids=(2,))
    bench.step()
    output = bench.launch()
    steps = [[2 if step == num_kept - 2 else 1] for step in range(12)]
    bench.scheduler.complete(output, sampled_tokens(steps), find_ending=ending_by_tokens)
    bench.scheduler.clear_up()
    assert seq.output_token_ids == [1] * (num_kept - 1) + [2]
    assert seq.status is SequenceStatus.FINISHED
    known = np.array([5, 6, 7, *seq.output_token_ids, 1, 1, 1, 1], dtype=np.int32)
    probe = Sequence(9, known, params=SamplingParams(), max_tokens=1)
    assert len(bench.manager.match_prefix(probe)) == num_blocks


def test_the_newest_sequence_is_preempted_and_goes_to_the_front() -> None:
    bench, first, second = bench_before_preemption()
    bench.step()
    bench.step()
    bench.add(2, [3] * 2, max_tokens=1)
    assert decoding(bench.step()) == [0]
    assert second.status is SequenceStatus.WAITING
    assert (second.slot, len(second.block_table), second.num_computed_tokens) == (None, 0, 0)
    assert second.output_token_ids == [1] * 6, "a preempted sequence keeps its tokens"
    while first.status is not SequenceStatus.FINISHED:
        assert admitted(bench.step()) == []
    assert admitted(bench.step())[:1] == [1]
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
