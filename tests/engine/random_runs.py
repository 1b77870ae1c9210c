"""Random engine configurations, run to their end on the fake model and checked after every step."""

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams
from tests.engine.fake_language import POISON_TOKEN, FakeLanguage
from tests.engine.fake_model import FakeModelRunner, Loop

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
        self.has_poison = rng.random() < 0.4
        self.language = FakeLanguage(
            vocab_size=rng.choice([3, 50]),
            eos_one_in=rng.choice([None, 4, 20]),
            nan_one_in=rng.choice([None, None, 30]),
        )
        self.manager = self.parts.manager(
            self.num_blocks,
            self.block_size,
            enable_prefix_caching=rng.random() < 0.85,
            min_copied_tokens=rng.choice([1, 1, 2, 4]),
            hash_function=rng.choice(
                [full_hash, full_hash, constant_hash, weak_hash, last_token_hash]
            ),
        )
        self.scheduler = self.parts.scheduler(
            self.manager,
            max_num_seqs=max_num_seqs,
            # What is poisoned is found by others if there is room for them in the same step.
            max_num_batched_tokens=rng.choice([64] if self.has_poison else [1, 2, 3, 5, 8, 16, 64]),
            prior_output_tokens=rng.choice([1, 1, 4, 256]),
        )
        self.runner = self.parts.runner(
            self.num_blocks, self.block_size, max_num_seqs=max_num_seqs, language=self.language
        )
        # A failed step sends its prompts back to their beginning, so failures must end some time.
        self.num_failures_left = rng.choice([0, 0, 4])
        self.loop = Loop(
            self.scheduler,
            self.runner,
            run_ahead=rng.randint(0, 3),
            num_decode_steps=rng.randint(1, 5),
            fails=self.fails,
        )
        self.arrival_rate = rng.choice([0.4, 0.95])
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
            if self.has_poison and seq_id % 3 == 0:
                ending = [*ending[:2], POISON_TOKEN]
            prompt = (rng.choice(beginnings) + ending)[: self.num_places] or [1]
            ignore_eos = rng.random() < 0.2
            sequences.append(
                Sequence(
                    seq_id,
                    np.array(prompt, dtype=np.int32),
                    params=SamplingParams(ignore_eos=ignore_eos),
                    max_tokens=min(rng.randint(1, 16), self.num_places + 1 - len(prompt)),
                    eos_token_ids=() if ignore_eos else (0,),
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
            while to_add and self.rng.random() < self.arrival_rate:
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
        self.scheduler.clear_up()
        for seq in self.sequences:
            expected = self.expected_output(seq)
            actual = self.loop.output(seq)
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
            copied=self.runner.num_copied_tokens > 0,
            copied_and_preempted=self.runner.num_copied_tokens > 0 and stats.num_preemptions > 0,
            aborted=len(self.aborted) > 0,
            nan=len(self.loop.failed) > 0,
            cured=any(
                seq.avoids_cache and seq.seq_id not in self.loop.failed | self.aborted
                for seq in self.sequences
            ),
            ran_ahead=self.loop.run_ahead > 0,
            chunked=self.scheduler.num_decode_steps > 1,
            preempted_with_run_ahead=stats.num_preemptions > 0 and self.loop.run_ahead > 0,
            preempted_in_chunks=stats.num_preemptions > 0 and self.scheduler.num_decode_steps > 1,
        )


def is_caught(parts: Parts) -> bool:
    """Return whether some random run notices what is wrong with the parts."""
    for seed in range(NUM_CONFIGURATIONS // 4):
        try:
            Run(seed, parts).execute()
        except (AssertionError, IndexError):
            return True
    return False
