"""Admission: length estimates, forecast, and what they achieve in a simulated run."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from nanobatch.engine.admission import KvForecast
from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.output_lengths import AGE_EDGES, StoppingRates
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import SchedulerOutput
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams
from tests.engine.fake_model import ending_by_tokens, sampled_tokens

EOS = 0
Lengths = npt.NDArray[np.int64]


def sequence(
    seq_id: int = 0,
    *,
    num_prompt_tokens: int = 10,
    num_output_tokens: int = 0,
    max_tokens: int = 4_000,
    ignore_eos: bool = False,
) -> Sequence:
    seq = Sequence(
        seq_id,
        np.arange(num_prompt_tokens, dtype=np.int32) + 1_000 * seq_id,
        params=SamplingParams(ignore_eos=ignore_eos),
        max_tokens=max_tokens,
        eos_token_ids=() if ignore_eos else (EOS,),
    )
    seq.output_token_ids += [1] * num_output_tokens
    return seq


def survival(rates: npt.NDArray[np.float64], start: int, stop: int) -> float:
    now, later = np.interp([start, stop], AGE_EDGES, rates)
    return float(np.exp(now - later))


def test_before_anything_was_seen_the_prior_holds() -> None:
    rates = StoppingRates(256).cumulative([])
    assert survival(rates, 0, 256) == pytest.approx(np.exp(-1))


def test_rates_approach_what_is_seen() -> None:
    estimate = StoppingRates(256)
    rng = np.random.default_rng(0)
    for length in rng.geometric(1 / 40, size=4_000).tolist():
        estimate.observe(sequence(num_output_tokens=length), is_stopped=True)
    rates = estimate.cumulative([])
    assert survival(rates, 0, 40) == pytest.approx(np.exp(-1), rel=0.05)
    assert survival(rates, 60, 100) == pytest.approx(np.exp(-1), rel=0.1)


def test_running_sequences_count_as_long_so_far() -> None:
    estimate = StoppingRates(256)
    for _ in range(20):
        estimate.observe(sequence(num_output_tokens=10), is_stopped=True)
    alone = survival(estimate.cumulative([]), 0, 100)
    running = [sequence(num_output_tokens=1_000) for _ in range(20)]
    assert survival(estimate.cumulative(running), 0, 100) > 1.5 * alone


def test_what_a_sequence_has_produced_tells_how_much_more_to_expect() -> None:
    estimate = StoppingRates(256)
    for _ in range(80):
        estimate.observe(sequence(num_output_tokens=20), is_stopped=True)
    for _ in range(20):
        estimate.observe(sequence(num_output_tokens=1_000), is_stopped=True)
    rates = estimate.cumulative([])
    assert survival(rates, 0, 100) == pytest.approx(0.25, abs=0.1)
    assert survival(rates, 100, 200) > 0.9


def test_aborted_and_cut_sequences_are_no_stops_and_known_lengths_do_not_count() -> None:
    estimate, untouched = StoppingRates(256), StoppingRates(256)
    estimate.observe(sequence(num_output_tokens=300), is_stopped=False)
    assert survival(estimate.cumulative([]), 0, 256) > survival(untouched.cumulative([]), 0, 256)
    untouched.observe(sequence(num_output_tokens=9, ignore_eos=True), is_stopped=False)
    assert untouched.cumulative([]).tolist() == StoppingRates(256).cumulative([]).tolist()


def forecast(running: list[Sequence], candidate: Sequence) -> KvForecast:
    return KvForecast(
        running,
        candidate,
        num_used_tokens=sum(seq.num_tokens for seq in running),
        rates=StoppingRates(256).cumulative(running),
    )


def test_peak_is_exact_for_known_lengths() -> None:
    # The second is gone when the first is longest, and 2 x (10 + 48) are held just before.
    running = [
        sequence(0, max_tokens=96, ignore_eos=True),
        sequence(1, max_tokens=48, ignore_eos=True),
    ]
    assert forecast(running, running[0]).peak_tokens() == 2 * (10 + 48)
    running = [
        sequence(0, max_tokens=96, ignore_eos=True),
        sequence(1, max_tokens=24, ignore_eos=True),
    ]
    assert forecast(running, running[0]).peak_tokens() == 10 + 96


def test_blocks_are_held_until_the_last_token_is_read() -> None:
    last = sequence(num_prompt_tokens=100, num_output_tokens=9, max_tokens=10, ignore_eos=True)
    assert forecast([last], last).peak_tokens() >= 109


def test_peak_is_capped_by_max_tokens() -> None:
    running = [sequence(seq_id, max_tokens=5) for seq_id in range(4)]
    assert forecast(running, running[0]).peak_tokens() <= 4 * 15


def test_shared_places_outlast_their_sequence() -> None:
    candidate = sequence(max_tokens=2, ignore_eos=True)
    view = forecast([], candidate)
    view.add(candidate, num_own_tokens=4, num_shared_tokens=16)
    assert view.peak_tokens() == 16 + 4 + 2


def test_a_longer_candidate_needs_a_new_forecast() -> None:
    view = forecast([], sequence(max_tokens=50, ignore_eos=True))
    assert view.covers(sequence(max_tokens=50, ignore_eos=True))
    assert not view.covers(sequence(max_tokens=500, ignore_eos=True))


def test_blocks_that_ended_sequences_still_hold_keep_nobody_out() -> None:
    """They are given back at the latest when someone is refused, who is then looked at again."""
    scheduler = Scheduler(
        BlockManager(100, 1, enable_prefix_caching=False),
        max_num_seqs=2,
        max_num_batched_tokens=200,
    )
    scheduler.expect_more(is_more=True)  # by arrival, not the longest first
    ends, stays, comes = (
        sequence(seq_id, num_prompt_tokens=size, max_tokens=max_tokens, ignore_eos=True)
        for seq_id, (size, max_tokens) in enumerate([(30, 1), (44, 10), (20, 26)])
    )
    for seq in (ends, stays, comes):
        scheduler.add(seq)
    first = scheduler.schedule()
    assert first is not None and first.sampled == [ends, stays]
    scheduler.complete(first, sampled_tokens([[1, 1]]), find_ending=ending_by_tokens)
    second = scheduler.schedule()
    assert second is not None and second.sampled == [comes]


@dataclass
class Simulation:
    """Run a scheduler over sequences that stop by themselves at given lengths."""

    lengths: Lengths
    num_rows_of_pool: int
    ignore_eos: bool = False
    run_ahead: int = 1

    def __post_init__(self) -> None:
        rng = np.random.default_rng(len(self.lengths))
        prompt_lengths = rng.integers(50, 400, size=len(self.lengths))
        mean_held = prompt_lengths.mean() + self.lengths.mean() / 2
        self.num_blocks = int(self.num_rows_of_pool * mean_held / 16)
        self.manager = BlockManager(self.num_blocks, 16)
        self.scheduler = Scheduler(self.manager, max_num_seqs=400, max_num_batched_tokens=2048)
        self.num_tokens = 0
        self.used_fraction = 0.0
        for seq_id, num_prompt_tokens in enumerate(prompt_lengths.tolist()):
            self.scheduler.add(
                sequence(
                    seq_id,
                    num_prompt_tokens=num_prompt_tokens,
                    max_tokens=int(self.lengths[seq_id]) if self.ignore_eos else 2_000,
                    ignore_eos=self.ignore_eos,
                )
            )

    def run(self) -> None:
        in_flight: deque[SchedulerOutput] = deque()
        num_steps = 0
        while True:
            output = self.scheduler.schedule()
            if output is not None:
                in_flight.append(output)
                self.num_tokens += output.num_tokens
                num_steps += 1
                self.used_fraction += 1 - self.manager.num_free_blocks / self.num_blocks
                self.scheduler.clear_up()
            elif not in_flight:
                break
            if output is None or len(in_flight) > self.run_ahead:
                self.complete(in_flight.popleft())
        self.used_fraction /= num_steps

    def complete(self, output: SchedulerOutput) -> None:
        steps = [
            [
                EOS if len(seq.output_token_ids) + step + 1 >= self.lengths[seq.seq_id] else 1
                for seq in output.sampled
            ]
            for step in range(output.num_steps)
        ]
        self.scheduler.complete(output, sampled_tokens(steps), find_ending=ending_by_tokens)


def geometric(rng: np.random.Generator, size: int) -> Lengths:
    return rng.geometric(1 / 60, size=size)


def uniform(rng: np.random.Generator, size: int) -> Lengths:
    return rng.integers(10, 120, size=size)


def mostly_short(rng: np.random.Generator, size: int) -> Lengths:
    is_short = rng.random(size) < 0.8
    return np.where(is_short, rng.geometric(1 / 10, size=size), rng.geometric(1 / 260, size=size))


@pytest.mark.parametrize("lengths", [geometric, uniform, mostly_short])
def test_less_than_two_percent_of_tokens_are_computed_again(
    lengths: Callable[[np.random.Generator, int], Lengths],
) -> None:
    drawn = np.minimum(lengths(np.random.default_rng(1), 2_000), 2_000)
    simulation = Simulation(drawn, num_rows_of_pool=40)
    simulation.run()
    stats = simulation.scheduler.stats()
    assert stats.num_preempted_tokens < 0.02 * simulation.num_tokens
    assert simulation.used_fraction > 0.75, "the pool is left empty"


def test_known_lengths_fill_the_pool_almost_without_preemption() -> None:
    simulation = Simulation(
        uniform(np.random.default_rng(2), 1_000), num_rows_of_pool=40, ignore_eos=True
    )
    simulation.run()
    stats = simulation.scheduler.stats()
    assert stats.num_preempted_tokens < 0.002 * simulation.num_tokens
    assert simulation.used_fraction > 0.85
