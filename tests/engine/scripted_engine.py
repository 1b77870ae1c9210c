"""Engines whose answers are written down: everything real but the model.

The null model's tokenizer spells a text, so a test says what a row answers and reads what the
engine makes of it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanobatch.config import EngineConfig, ModelConfig
from nanobatch.engine.core import EngineCore
from nanobatch.engine.deadlines import Clock
from nanobatch.engine.factory import LoadedRunner, OnProgress, build_engine
from nanobatch.engine.step_batch import DecodeBatch, SampledTokens, StepBatch
from nanobatch.errors import EngineError
from nanobatch.models.source import ModelSource
from nanobatch.request import (
    Request,
    RequestOutput,
    RequestOutputs,
    RowIndex,
    SamplingParams,
)
from tests.engine.fake_model import sampled_tokens
from tests.null_model import EOS_TOKEN_ID, sampled_places


@dataclass(frozen=True, slots=True)
class Asked:
    """What a scripted model is asked for: the next token of one sequence.

    Attributes:
        prompt: The prompt's tokens.
        num_generated: Tokens that it has generated so far.
        sample_index: Which of the request's samples it is.
    """

    prompt: tuple[int, ...]
    num_generated: int
    sample_index: int


Answer = Callable[[Asked], int | None]
"""Returns the next token; None for NaN logits."""

NUM_KV_BLOCKS = 512


class ScriptedRunner:
    """A `ModelRunner` that answers by rote.

    Args:
        max_num_seqs: Number of slots.
        answer: What it says.
        failing_launches: Launches, counted from 0, that raise an EngineError instead.
        step_s: Seconds that it says a step took.
    """

    def __init__(
        self,
        max_num_seqs: int,
        answer: Answer,
        *,
        failing_launches: Sequence[int] = (),
        step_s: float | None = None,
    ) -> None:
        self._step_s = step_s
        self.num_steps_of_launches: list[int] = []
        self._answer = answer
        self._failing_launches = failing_launches
        self._prompts: list[tuple[int, ...]] = [()] * max_num_seqs
        self._sample_indices = [0] * max_num_seqs
        self.num_computed_tokens = 0
        self.num_launches = 0
        self.max_tokens_in_prefill = 0
        self.noise_keys: list[tuple[int, int]] = []
        self.is_closed = False

    def launch(self, batch: StepBatch) -> "PendingScript":
        """Answer a step, or fail."""
        if self.is_closed:
            raise EngineError("the model runner is closed")
        self.num_launches += 1
        if self.num_launches - 1 in self._failing_launches:
            raise EngineError("out of memory, as ordered")
        for assignment in () if isinstance(batch, DecodeBatch) else batch.slot_assignments:
            self._prompts[assignment.slot] = tuple(assignment.prompt_token_ids.tolist())
            self._sample_indices[assignment.slot] = assignment.sample_index
            self.noise_keys.append((assignment.noise_seed, assignment.sample_index))
        self.num_computed_tokens += batch.num_tokens
        if not isinstance(batch, DecodeBatch):
            self.max_tokens_in_prefill = max(self.max_tokens_in_prefill, batch.num_tokens)
        slots, positions = sampled_places(batch)
        self.num_steps_of_launches.append(len(positions))
        return PendingScript(
            [
                list(map(self._next_token, slots.tolist(), of_step))
                for of_step in positions.tolist()
            ],
            device_seconds=None if self._step_s is None else self._step_s * len(positions),
        )

    def close(self) -> None:
        """Refuse every later launch."""
        self.is_closed = True

    def _next_token(self, slot: int, position: int) -> int | None:
        prompt = self._prompts[slot]
        return self._answer(Asked(prompt, position + 1 - len(prompt), self._sample_indices[slot]))


class PendingScript:
    """A batch that is done already."""

    def __init__(self, steps: list[list[int | None]], *, device_seconds: float | None) -> None:
        self._steps = steps
        self._device_seconds = device_seconds

    def result(self) -> SampledTokens:
        """Return what was sampled."""
        return replace(sampled_tokens(self._steps), device_seconds=self._device_seconds)


def scripted_engine(
    model: Path,
    answer: Answer,
    *,
    failing_launches: Sequence[int] = (),
    runners: list[ScriptedRunner] | None = None,
    clock: Clock = time.monotonic,
    step_s: float | None = None,
    **options: Any,
) -> EngineCore:
    """Build an engine around a scripted runner.

    Args:
        model: Folder that `write_null_model` wrote.
        answer: What its rows are answered.
        failing_launches: See `ScriptedRunner`.
        runners: Gets the runner, for tests that look at its counters.
        clock: Time by which sequences are late.
        step_s: See `ScriptedRunner`.
        **options: Fields of EngineConfig.
    """

    def load(
        config: EngineConfig,
        _source: ModelSource,
        _model_config: ModelConfig,
        _on_progress: OnProgress | None,
    ) -> LoadedRunner:
        runner = ScriptedRunner(
            config.step_sizes("cpu").max_num_seqs,
            answer,
            failing_launches=failing_launches,
            step_s=step_s,
        )
        if runners is not None:
            runners.append(runner)
        return LoadedRunner(runner, config.num_kv_blocks or NUM_KV_BLOCKS, device_type="cpu")

    config = EngineConfig(model=str(model), **options)
    return build_engine(config, load_runner=load, clock=clock)


def says(token_ids: Sequence[int]) -> Answer:
    """Answer every prompt with these tokens, again and again."""
    return lambda asked: token_ids[asked.num_generated % len(token_ids)]


def ids_request(row_index: int, input_ids: Sequence[int], **params: Any) -> Request:
    """Return a request of token ids with these sampling parameters."""
    return Request(
        row_index=RowIndex(row_index),
        input_ids=tuple(input_ids),
        params=SamplingParams(**params),
    )


def answer_samples(engine: EngineCore, requests: Sequence[Request]) -> dict[int, RequestOutputs]:
    """Run requests to their end and return all samples of each by row."""
    finished = engine.add_requests(requests)
    for of_step in engine.run():
        finished.extend(of_step)
    return {int(outputs[0].row_index): outputs for outputs in finished}


def answer_all(engine: EngineCore, requests: Sequence[Request]) -> dict[int, RequestOutput]:
    """Run requests of one sample each to their end and return their outputs by row."""
    return {row: output for row, (output,) in answer_samples(engine, requests).items()}


def hashed(asked: Asked) -> int | None:
    """Answer with tokens that depend on prompt, place and sample, an end now and then."""
    draw = hash((asked.prompt, asked.num_generated, asked.sample_index)) & 0xFFFFFF
    return EOS_TOKEN_ID if draw % 23 == 0 else 36 + draw % 200


def is_idle(engine: EngineCore) -> bool:
    """Return whether nothing waits, runs or holds a block."""
    engine._scheduler.check_integrity()
    engine._scheduler.clear_up()  # as the next step would
    stats = engine.stats()
    engine._scheduler.check_integrity()
    held = stats.num_blocks_used + stats.num_blocks_shared
    return (stats.num_waiting, stats.num_running, held, stats.num_unfinished_tokens) == (0, 0, 0, 0)


def varied_requests(num_rows: int) -> list[Request]:
    """Return rows of various lengths whose prompts begin alike."""
    beginning = list(range(36, 36 + 35))
    return [
        ids_request(
            row,
            [*beginning[: (row * 7) % 36], 100 + row],
            max_tokens=1 + row % 30,
            ignore_eos=row % 3 == 0,
        )
        for row in range(num_rows)
    ]
