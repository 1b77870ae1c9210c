"""Random configurations against a fake model that notices every wrong read.

Tiny pools, chunks, shared beginnings, preemption, aborts, failed launches, run-ahead, hash
collisions: whatever the scheduler does, every sequence must get what it gets alone.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobatch.engine.batch import ForwardBatch
from nanobatch.engine.block_manager import BlockManager, CacheEntry
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams
from tests.engine.fake_model import FakeLanguage, FakeModelRunner, FakePending, Loop

NUM_CONFIGURATIONS = 2_000


def full_hash(joined: bytes) -> bytes:
    return joined


def constant_hash(_: bytes) -> bytes:
    return b"same"


def weak_hash(joined: bytes) -> bytes:
    return bytes([sum(joined) % 5])


def last_token_hash(joined: bytes) -> bytes:
    return joined[-4:]


@dataclass(frozen=True)
class Parts:
    """The classes under test, so that a mutant can take the place of any of them."""

    manager: type[BlockManager] = BlockManager
    scheduler: type[Scheduler] = Scheduler
    runner: type[FakeModelRunner] = FakeModelRunner
    has_integrity_checks: bool = True


@dataclass
class Run:
    """One random configuration, made from a seed."""

    seed: int
    parts: Parts = field(default_factory=Parts)

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.block_size = rng.randint(1, 8)
        self.num_blocks = rng.randint(1, 20)
        self.num_places = self.num_blocks * self.block_size
        max_num_seqs = rng.randint(1, 6)
        self.language = FakeLanguage(
            vocab_size=rng.choice([3, 50]),
            eos_one_in=rng.choice([None, 4, 20]),
            nan_one_in=rng.choice([None, None, 30]),
        )
        self.manager = self.parts.manager(
            self.num_blocks,
            self.block_size,
            enable_prefix_caching=rng.random() < 0.85,
            hash_function=rng.choice(
                [full_hash, full_hash, constant_hash, weak_hash, last_token_hash]
            ),
        )
        self.scheduler = self.parts.scheduler(
            self.manager,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=rng.choice([1, 2, 3, 5, 8, 16, 64]),
            prior_output_tokens=rng.choice([1, 1, 4, 256]),
        )
        runner = self.parts.runner(
            self.num_blocks, self.block_size, max_num_seqs=max_num_seqs, language=self.language
        )
        # A failed step sends its prompts back to their beginning, so failures must end some time.
        self.num_failures_left = rng.choice([0, 0, 4])
        self.loop = Loop(
            self.scheduler,
            runner,
            run_ahead=rng.randint(0, 3),
            fails=self.fails,
        )
        self.abort_rate = rng.choice([0.0, 0.0, 0.03])
        self.sequences = self.make_sequences()
        self.aborted: set[int] = set()

    def make_sequences(self) -> list[Sequence]:
        rng = self.rng
        tokens = [1, 2] if rng.random() < 0.3 else list(range(1, 10))
        beginnings = [
            rng.choices(tokens, k=rng.randint(0, max(self.num_places * 2 // 3, 1)))
            for _ in range(rng.randint(1, 3))
        ]
        sequences = []
        for seq_id in range(rng.randint(1, 8)):
            ending = rng.choices(tokens, k=rng.randint(0, 5))
            prompt = (rng.choice(beginnings) + ending)[: self.num_places] or [1]
            sequences.append(
                Sequence(
                    seq_id,
                    np.array(prompt, dtype=np.int32),
                    params=SamplingParams(ignore_eos=rng.random() < 0.2),
                    max_tokens=min(rng.randint(1, 16), self.num_places + 1 - len(prompt)),
                    priority=rng.choice([0, 0, 0, 1]),
                )
            )
        return sequences

    def execute(self) -> Counter[str]:
        """Run to the end and check everything; return what happened on the way."""
        to_add = list(self.sequences)
        max_num_steps = 1_000 + 40 * sum(seq.max_num_tokens for seq in self.sequences)
        num_turns = 0
        has_progress = True
        while has_progress or to_add:
            while to_add and self.rng.random() < 0.4:
                self.scheduler.add(to_add.pop(0))
            if self.rng.random() < self.abort_rate:
                self.abort(self.rng.choice(self.sequences), unless_in=to_add)
            has_progress = self.loop.step()
            if self.parts.has_integrity_checks:
                self.scheduler.check_integrity()
            num_turns += 1
            assert num_turns < max_num_steps, "livelock"
        self.check_end()
        return self.events()

    def fails(self) -> bool:
        if self.num_failures_left == 0 or self.rng.random() > 0.1:
            return False
        self.num_failures_left -= 1
        return True

    def abort(self, seq: Sequence, *, unless_in: list[Sequence]) -> None:
        if seq not in unless_in:
            self.scheduler.abort(seq)
            self.aborted.add(seq.seq_id)

    def check_end(self) -> None:
        for seq in self.sequences:
            expected = self.expected_output(seq)
            actual = self.loop.outputs.get(seq.seq_id, [])
            if seq.seq_id in self.aborted:
                assert actual == expected[: len(actual)], f"{seq} before its abort"
            else:
                assert actual == expected, f"{seq}"
        stats = self.scheduler.stats()
        assert (stats.num_waiting, stats.num_running) == (0, 0)
        assert self.manager.num_free_blocks == self.num_blocks, "blocks leak"
        assert all(seq.num_in_flight == 0 for seq in self.sequences)

    def expected_output(self, seq: Sequence) -> list[int | None]:
        return self.language.continue_alone(
            seq.prompt_token_ids.tolist(), seq.max_tokens, ignore_eos=seq.params.ignore_eos
        )

    def events(self) -> Counter[str]:
        stats = self.scheduler.stats()
        return Counter(
            preempted=stats.num_preemptions > 0,
            cached=stats.num_cached_prompt_tokens > 0,
            aborted=len(self.aborted) > 0,
            nan=any(None in tokens for tokens in self.loop.outputs.values()),
            ran_ahead=self.loop.run_ahead > 0,
            preempted_with_run_ahead=stats.num_preemptions > 0 and self.loop.run_ahead > 0,
        )


@pytest.mark.slow
def test_every_sequence_gets_what_it_gets_alone_in_2000_random_configurations() -> None:
    events: Counter[str] = Counter()
    for seed in range(NUM_CONFIGURATIONS):
        try:
            events += Run(seed).execute()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    # The test would prove little if the hard cases did not occur.
    for name in ("preempted", "cached", "aborted", "nan", "ran_ahead", "preempted_with_run_ahead"):
        assert events[name] >= NUM_CONFIGURATIONS // 50, f"{name} is too rare: {events}"


@given(st.integers(min_value=NUM_CONFIGURATIONS))
@settings(max_examples=30, deadline=None)
def test_every_sequence_gets_what_it_gets_alone_under_any_seed(seed: int) -> None:
    Run(seed).execute()


class PublishesUnscheduledBlocks(BlockManager):
    def publish(self, seq: Sequence, num_tokens: int) -> bool:
        return super().publish(seq, max(num_tokens, seq.num_tokens))


class KeepsPublicationsOfFailedSteps(BlockManager):
    def withdraw(self, seq: Sequence, num_entries: int) -> None:
        del seq.prefix_entry_ids[num_entries:]


class TrustsHashes(BlockManager):
    def _find(
        self, block_hash: bytes, parent_id: int, seq: Sequence, index: int
    ) -> CacheEntry | None:
        return self._entry_by_hash.get(block_hash)


class IgnoresParents(BlockManager):
    def _find(
        self, block_hash: bytes, parent_id: int, seq: Sequence, index: int
    ) -> CacheEntry | None:
        entry = self._entry_by_hash.get(block_hash)
        is_equal = entry is not None and entry.token_bytes == self._token_bytes(seq, index)
        return entry if is_equal else None


class ForgetsEntriesTooLate(BlockManager):
    def append_block(self, seq: Sequence) -> None:
        block_id = self._free_blocks.pop_oldest()
        self._ref_counts[block_id] = 1
        seq.block_table.append(block_id)


class FreesSharedBlocks(BlockManager):
    def _acquire(self, block_id: int) -> None:
        super()._acquire(block_id)
        self._ref_counts[block_id] = 1


class ForgetsOwedTokens(Scheduler):
    def _preempt(self, seq: Sequence) -> None:
        super()._preempt(seq)
        seq.num_in_flight = 0


class AdmitsDrainingSequences(Scheduler):
    def _admit_next(self, admitted: list[Sequence]) -> Sequence | None:
        seq = self._waiting.peek()
        if seq is None or seq.num_in_flight == 0:
            return super()._admit_next(admitted)
        owed, seq.num_in_flight = seq.num_in_flight, 0
        admitted_seq = super()._admit_next(admitted)
        seq.num_in_flight = owed
        return admitted_seq


class StoresOnePlaceTooFar(FakeModelRunner):
    def launch(self, batch: ForwardBatch) -> FakePending:
        moved = (batch.slot_mapping + 1) % len(self._places)
        return super().launch(replace(batch, slot_mapping=moved))


class MixesUpBlockTables(FakeModelRunner):
    def launch(self, batch: ForwardBatch) -> FakePending:
        return super().launch(replace(batch, block_tables=np.roll(batch.block_tables, 1, axis=0)))


class TakesTokensFromOtherSlots(FakeModelRunner):
    def launch(self, batch: ForwardBatch) -> FakePending:
        rows = batch.last_token_rows[::-1]
        return super().launch(replace(batch, last_token_rows=rows))


@pytest.mark.parametrize(
    "parts",
    [
        Parts(manager=PublishesUnscheduledBlocks),
        Parts(manager=KeepsPublicationsOfFailedSteps),
        Parts(manager=TrustsHashes),
        Parts(manager=IgnoresParents),
        Parts(manager=ForgetsEntriesTooLate),
        Parts(manager=FreesSharedBlocks),
        Parts(scheduler=ForgetsOwedTokens),
        Parts(scheduler=AdmitsDrainingSequences),
        Parts(runner=StoresOnePlaceTooFar),
        Parts(runner=MixesUpBlockTables),
        Parts(runner=TakesTokensFromOtherSlots),
    ],
    ids=lambda parts: next(
        part.__name__
        for part in (parts.manager, parts.scheduler, parts.runner)
        if part not in (BlockManager, Scheduler, FakeModelRunner)
    ),
)
def test_a_mutant_is_caught_by_the_fake_model_alone(parts: Parts) -> None:
    parts = replace(parts, has_integrity_checks=False)

    def is_caught(seed: int) -> bool:
        try:
            Run(seed, parts).execute()
        except AssertionError:
            return True
        return False

    assert any(is_caught(seed) for seed in range(NUM_CONFIGURATIONS // 4))


ORDERS: dict[str, Callable[[list[list[int]], random.Random], None]] = {
    "sorted": lambda prompts, _: prompts.sort(),
    "shuffled": lambda prompts, rng: rng.shuffle(prompts),
}


def nested_prompts(rng: random.Random, *, num_prompts: int) -> list[list[int]]:
    """Make prompts that share a system prompt, one of a few topics, and partly all the rest."""

    def text(low: int, high: int) -> list[int]:
        return [rng.randint(1, 999) for _ in range(rng.randint(low, high))]

    system = text(60, 140)
    topics = [system + text(0, 120) for _ in range(4)]
    questions = [rng.choice(topics) + text(1, 60) for _ in range(num_prompts * 3 // 4)]
    repeated = [
        question[: rng.choice([len(question), len(question) // 16 * 16])]
        for question in rng.sample(questions, num_prompts // 4)
    ]
    return questions + repeated


def ideal_num_prefill_tokens(prompts: list[list[int]], block_size: int) -> int:
    """Count tokens not in a full block shared with an earlier row, at least one a row."""
    seen: set[tuple[int, ...]] = set()
    num_tokens = 0
    for prompt in prompts:
        beginnings = [
            tuple(prompt[:stop]) for stop in range(block_size, len(prompt) + 1, block_size)
        ]
        num_shared = sum(beginning in seen for beginning in beginnings) * block_size
        num_tokens += max(len(prompt) - num_shared, 1)
        seen.update(beginnings)
    return num_tokens


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("budget", [5, 16, 100, 4096])
@pytest.mark.parametrize("run_ahead", [0, 2])
def test_cold_run_computes_shared_prefixes_once(order: str, budget: int, run_ahead: int) -> None:
    rng = random.Random(f"{order} {budget} {run_ahead}")
    prompts = nested_prompts(rng, num_prompts=60)
    ORDERS[order](prompts, rng)
    block_size, num_blocks = 16, 4_000
    runner = FakeModelRunner(
        num_blocks, block_size, max_num_seqs=32, language=FakeLanguage(eos_one_in=6)
    )
    scheduler = Scheduler(
        BlockManager(num_blocks, block_size), max_num_seqs=32, max_num_batched_tokens=budget
    )
    Loop(scheduler, runner, run_ahead=run_ahead).run(
        Sequence(seq_id, np.array(prompt, dtype=np.int32), params=SamplingParams(), max_tokens=8)
        for seq_id, prompt in enumerate(prompts)
    )
    ideal = ideal_num_prefill_tokens(prompts, block_size)
    assert sum(map(len, prompts)) > 1.5 * ideal, "the prompts hardly share anything"
    assert ideal <= runner.num_prefill_tokens <= 1.02 * ideal
