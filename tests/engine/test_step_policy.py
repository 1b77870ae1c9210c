"""In which portions prompts are admitted, and what that does to a run."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import ScheduledDecode, SchedulerOutput
from nanobatch.engine.sequence import Sequence
from nanobatch.engine.step_policy import WORTHWHILE_TOKENS, StepPolicy
from nanobatch.request import SamplingParams
from tests.engine.fake_model import ending_by_tokens, sampled_tokens


def wants(
    policy: StepPolicy, *, num_running: int, num_waiting: int = 1_000, num_tokens: float = 10
) -> bool:
    return policy.wants_prompts(
        num_running=num_running, num_waiting=num_waiting, num_tokens_to_admit=num_tokens
    )


def full_policy(num_rows_that_fit: int) -> StepPolicy:
    policy = StepPolicy(max_num_seqs=1024, max_num_batched_tokens=8192)
    policy.note_admission(num_running=num_rows_that_fit, num_waiting=5, is_budget_used_up=False)
    return policy


def test_nothing_running_or_a_start_not_finished_is_always_worth_it() -> None:
    policy = StepPolicy(max_num_seqs=1024, max_num_batched_tokens=8192)
    assert wants(policy, num_running=0)
    assert not wants(policy, num_running=0, num_waiting=0)
    policy.note_admission(num_running=1_023, num_waiting=5, is_budget_used_up=True)
    assert wants(policy, num_running=1_023)
    policy.note_admission(num_running=1_024, num_waiting=4, is_budget_used_up=False)
    assert not wants(policy, num_running=1_024)


def test_a_portion_is_worth_it_by_its_tokens() -> None:
    policy = full_policy(512)
    assert not wants(policy, num_running=511, num_tokens=WORTHWHILE_TOKENS - 1)
    assert wants(policy, num_running=511, num_tokens=WORTHWHILE_TOKENS)
    assert not wants(policy, num_running=508, num_tokens=WORTHWHILE_TOKENS / 4 - 1)
    assert wants(policy, num_running=508, num_tokens=WORTHWHILE_TOKENS / 4)


def test_a_portion_is_worth_it_by_the_share_of_rows_that_are_missing() -> None:
    policy = full_policy(512)
    assert not wants(policy, num_running=512 - 31)
    assert wants(policy, num_running=512 - 32)
    assert wants(full_policy(4), num_running=3)


def test_the_last_rows_that_wait_are_not_kept_waiting() -> None:
    policy = full_policy(512)
    assert not wants(policy, num_running=510, num_waiting=3)
    assert wants(policy, num_running=510, num_waiting=2)


def test_after_a_preemption_nothing_fits_until_rows_leave() -> None:
    policy = full_policy(64)
    policy.note_preemption(40)
    assert not wants(policy, num_running=40)
    assert wants(policy, num_running=37)


@dataclass
class Run:
    """A scheduler over rows of known lengths; tokens are all alike.

    Attributes:
        lengths: Prompt and output tokens of each row.
        num_blocks: Size of the pool.
        max_num_seqs: Slots.
    """

    lengths: list[tuple[int, int]]
    num_blocks: int
    max_num_seqs: int = 1024
    num_decode_steps: int = 2
    steps: Counter[str] = field(default_factory=Counter)
    num_rows_of_prefills: list[int] = field(default_factory=list)
    used_fractions: list[float] = field(default_factory=list)

    def execute(self) -> None:
        manager = BlockManager(self.num_blocks, 16)
        scheduler = Scheduler(
            manager, max_num_seqs=self.max_num_seqs, max_num_batched_tokens=16_384
        )
        scheduler.num_decode_steps = self.num_decode_steps
        for seq_id, (num_prompt_tokens, max_tokens) in enumerate(self.lengths):
            prompt = np.arange(num_prompt_tokens, dtype=np.int32) + 10_000 * seq_id
            params = SamplingParams(ignore_eos=True)
            scheduler.add(Sequence(seq_id, prompt, params=params, max_tokens=max_tokens))
        while (output := scheduler.schedule()) is not None:
            self.note(output, scheduler, manager)
            steps = [[1] * len(output.sampled)] * output.num_steps
            scheduler.complete(output, sampled_tokens(steps), find_ending=ending_by_tokens)
        stats = scheduler.stats()
        assert stats.num_output_tokens == sum(max_tokens for _, max_tokens in self.lengths)
        assert stats.num_preemptions <= len(self.lengths) // 50

    def note(self, output: SchedulerOutput, scheduler: Scheduler, manager: BlockManager) -> None:
        self.steps[type(output).__name__] += 1
        if not isinstance(output, ScheduledDecode):
            self.num_rows_of_prefills.append(len(output.admitted))
        elif scheduler.stats().num_waiting:
            self.used_fractions.append(1 - manager.num_free_blocks / manager.num_blocks)


def test_equal_rows_are_not_prefilled_one_by_one() -> None:
    run = Run([(100, 8 + row % 64) for row in range(2_000)], num_blocks=16_000, max_num_seqs=256)
    run.execute()
    assert run.steps["ScheduledPrefill"] <= 2_000 / 16 + 2
    assert np.median(run.num_rows_of_prefills) >= 16


@pytest.mark.parametrize("shared_pool", [3, 6])
def test_decoding_keeps_the_pool_nine_tenths_full_while_rows_wait(shared_pool: int) -> None:
    rng = np.random.default_rng(0)
    lengths = [(int(p), int(o)) for p, o in rng.integers(100, 1025, size=(1_024, 2))]
    num_blocks = sum(prompt + output for prompt, output in lengths) // 16 // shared_pool
    run = Run(lengths, num_blocks=num_blocks)
    run.execute()
    assert np.mean(run.used_fractions) >= 0.9
    num_prompt_tokens = sum(prompt for prompt, _ in lengths)
    assert run.steps["ScheduledPrefill"] <= num_prompt_tokens / WORTHWHILE_TOKENS * 1.5
