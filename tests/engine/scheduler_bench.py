"""A scheduler over a small pool, driven step by step."""

from dataclasses import dataclass, field

import numpy as np

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import ScheduledPrefill, SchedulerOutput
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams
from tests.engine.fake_model import ending_by_tokens, sampled_tokens


@dataclass
class Bench:
    """A scheduler with a tiny pool whose steps are completed by hand, token 1 everywhere."""

    num_blocks: int = 16
    block_size: int = 4
    max_num_seqs: int = 8
    budget: int = 64
    num_decode_steps: int = 1
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
        self.scheduler.num_decode_steps = self.num_decode_steps

    def add(
        self,
        seq_id: int,
        prompt: list[int],
        *,
        max_tokens: int = 20,
        priority: int = 0,
        eos_token_ids: tuple[int, ...] = (),
    ) -> Sequence:
        seq = Sequence(
            seq_id,
            np.array(prompt, dtype=np.int32),
            params=SamplingParams(),
            max_tokens=max_tokens,
            priority=priority,
            eos_token_ids=eos_token_ids,
        )
        self.scheduler.add(seq)
        return seq

    def launch(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        assert output is not None
        self.in_flight.append(output)
        self.scheduler.check_integrity()
        return output

    def read(self) -> list[int]:
        """Complete the oldest step; return the sequences that got tokens by it."""
        output = self.in_flight.pop(0)
        num_known = [len(seq.output_token_ids) for seq in output.sampled]
        self.scheduler.complete(
            output,
            sampled_tokens([[1] * len(output.sampled)] * output.num_steps),
            find_ending=ending_by_tokens,
        )
        self.scheduler.clear_up()
        return [
            seq.seq_id
            for seq, num_before in zip(output.sampled, num_known, strict=True)
            if len(seq.output_token_ids) > num_before
        ]

    def step(self) -> SchedulerOutput:
        output = self.launch()
        self.read()
        return output


def chunks(output: SchedulerOutput) -> list[tuple[int, int, int]]:
    if not isinstance(output, ScheduledPrefill):
        return []
    return [(chunk.sequence.seq_id, chunk.start, chunk.num_tokens) for chunk in output.chunks]


def decoding(output: SchedulerOutput) -> list[int]:
    return [] if isinstance(output, ScheduledPrefill) else ids(output.sampled)


def admitted(output: SchedulerOutput) -> list[int]:
    return ids(output.admitted) if isinstance(output, ScheduledPrefill) else []


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
