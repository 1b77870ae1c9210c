"""A scheduler over a small pool, driven step by step."""

from dataclasses import dataclass, field

import numpy as np

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import SchedulerOutput
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams


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


def bench_before_preemption() -> tuple[Bench, Sequence, Sequence]:
    """Return two sequences that hold 10 tokens each; no block is left when they have 12."""
    bench = Bench(num_blocks=6)
    first, second = bench.add(0, [1] * 7, max_tokens=17), bench.add(1, [2] * 7, max_tokens=17)
    for _ in range(4):
        bench.step()
    assert [seq.num_computed_tokens for seq in (first, second)] == [10, 10]
    return bench, first, second
