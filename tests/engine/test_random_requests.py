"""Whole requests at random: samples, timeouts, aborts and failed launches, on tiny pools."""

import random
from collections import Counter
from typing import Any

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.core import EngineCore
from nanobatch.engine.deadlines import Deadlines
from nanobatch.engine.limits import EngineLimits
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.errors import EngineError
from nanobatch.request import ErrorCode, Request, RequestOutputs
from tests.engine.scripted_engine import (
    Asked,
    ScriptedRunner,
    answer_samples,
    hashed,
    ids_request,
    is_idle,
)

NUM_RUNS = 200
TIMEOUT_S = 6.0


def answer(asked: Asked) -> int | None:
    """As `hashed`, with logits that are not numbers now and then."""
    is_nan = hash((asked.prompt, asked.sample_index, asked.num_generated, 3)) % 97 == 0
    return None if is_nan else hashed(asked)


class RandomRun:
    """One random engine and its requests, made from a seed."""

    def __init__(self, seed: int, tokenizer: Tokenizer) -> None:
        rng = self.rng = random.Random(seed)
        self.tokenizer = tokenizer
        self.now_s = 0.0
        self.step_s = rng.choice([0.2, 1.0])
        self.abort_rate = rng.choice([0.0, 0.04])
        self.requests = self.make_requests()
        self.engine = self.engine_of(
            num_blocks=rng.randint(6, 20),
            max_num_seqs=rng.randint(1, 7),
            run_ahead=rng.randint(0, 3),
            failing_launches=rng.sample(range(40), rng.choice([0, 0, 3])),
            timeout_s=rng.choice([None, TIMEOUT_S]),
        )
        self.finished: dict[int, RequestOutputs] = {}
        self.aborted: set[int] = set()

    def engine_of(self, *, timeout_s: float | None = None, **options: Any) -> EngineCore:
        block_size = 4
        scheduler = Scheduler(
            BlockManager(options["num_blocks"], block_size),
            max_num_seqs=options["max_num_seqs"],
            max_num_batched_tokens=self.rng.choice([2, 7, 64]),
            prior_output_tokens=1,
        )
        limits = EngineLimits(
            max_model_len=64,
            kv_capacity_tokens=options["num_blocks"] * block_size,
            vocab_size=320,
            eos_token_ids=(1,),
        )
        runner = ScriptedRunner(
            options["max_num_seqs"], answer, failing_launches=options["failing_launches"]
        )
        return EngineCore(
            tokenizer=self.tokenizer,
            scheduler=scheduler,
            runner=runner,
            limits=limits,
            run_ahead=options["run_ahead"],
            num_decode_steps=self.rng.randint(1, 5),
            deadlines=Deadlines(timeout_s, clock=lambda: self.now_s),
        )

    def make_requests(self) -> list[Request]:
        rng = self.rng
        beginning = list(range(40, 56))
        return [
            ids_request(
                row,
                [*beginning[: rng.randint(0, 14)], 60 + row],
                n=rng.choice([1, 1, 2, 3, 5]),
                max_tokens=rng.randint(0, 9),
                ignore_eos=rng.random() < 0.3,
            )
            for row in range(rng.randint(1, 6))
        ]

    def execute(self) -> Counter[str]:
        """Run to the end and check everything; return what happened on the way."""
        to_add = list(self.requests)
        num_turns = 0
        while to_add or self.engine.has_unfinished:
            if to_add and self.rng.random() < 0.5:
                self.take(self.engine.add_requests([to_add.pop(0)]))
            if self.rng.random() < self.abort_rate:
                self.abort(self.rng.choice(self.requests), unless_in=to_add)
            try:
                self.take(self.engine.step())
            except EngineError as error:
                assert "as ordered" in error.message, error
            self.engine._scheduler.check_integrity()
            self.now_s += self.step_s
            num_turns += 1
            assert num_turns < 2_000, "livelock"
        return self.check_end()

    def take(self, finished: list[RequestOutputs]) -> None:
        for outputs in finished:
            row_index = int(outputs[0].row_index)
            assert row_index not in self.finished, "a row is answered twice"
            self.finished[row_index] = outputs

    def abort(self, request: Request, *, unless_in: list[Request]) -> None:
        if request not in unless_in and request.row_index not in self.finished:
            self.engine.abort([request.row_index])
            self.aborted.add(int(request.row_index))

    def check_end(self) -> Counter[str]:
        assert is_idle(self.engine)
        assert len(self.engine._deadlines) == 0
        reference = self.engine_of(num_blocks=20, max_num_seqs=1, run_ahead=0, failing_launches=())
        expected = answer_samples(reference, self.requests)
        assert self.finished.keys() == expected.keys() - self.aborted
        events: Counter[str] = Counter(
            aborted=len(self.aborted), preempted=self.engine.stats().num_preemptions
        )
        for row, outputs in self.finished.items():
            assert [output.sample_index for output in outputs] == list(
                range(self.requests[row].params.n)
            )
            for output, alone in zip(outputs, expected[row], strict=True):
                code = None if output.error is None else output.error.code
                events[str(code)] += 1
                if code is not ErrorCode.TIMEOUT:
                    assert (output.token_ids, output.text) == (alone.token_ids, alone.text)
                    assert code == (None if alone.error is None else alone.error.code)
                elif alone.error is None:
                    assert output.num_completion_tokens < alone.num_completion_tokens
        return events


def test_every_sample_gets_what_it_gets_alone_or_a_timeout(tokenizer: Tokenizer) -> None:
    events: Counter[str] = Counter()
    for seed in range(NUM_RUNS):
        try:
            events += RandomRun(seed, tokenizer).execute()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    for name in ("timeout", "nan_logits", "None", "aborted", "preempted"):
        assert events[name] >= NUM_RUNS // 20, f"{name} is too rare: {events}"
