"""The engine: requests in, continuations out. The only place where the stages meet.

    requests ─ tokenizer ▶ sequences ─ scheduler ▶ step ─ batch ▶ arrays ─ runner ▶ tokens ▶ outputs

Knows nothing of files. Steps are launched up to `run_ahead` ahead of the results being read;
what is in flight is owned by `_in_flight`, oldest first, and read in that order.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import xxhash

from nanobatch.engine.batch import ModelRunner, PendingTokens, build_forward_batch
from nanobatch.engine.engine_stats import EngineStats
from nanobatch.engine.limits import EngineLimits
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import SchedulerOutput
from nanobatch.engine.sequence import Sequence as EngineSequence
from nanobatch.engine.stopping import Ending, find_ending
from nanobatch.engine.tokenizer import TokenIds, Tokenizer
from nanobatch.errors import EngineError
from nanobatch.request import (
    ErrorCode,
    FinishReason,
    Request,
    RequestOutput,
    RequestOutputs,
    RowError,
    RowIndex,
)


class EngineCore:
    """Continuous batching over one model runner.

    Args:
        tokenizer: Renders, encodes, decodes.
        scheduler: Decides what each step computes.
        runner: Computes it.
        limits: What fits the model and the KV pool.
        run_seed: Key from which requests without a seed draw theirs.
        run_ahead: Steps launched before the results of the oldest one are read.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        runner: ModelRunner,
        limits: EngineLimits,
        run_seed: int = 0,
        run_ahead: int = 0,
    ) -> None:
        self.limits = limits
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._runner = runner
        self._run_seed = run_seed
        self._run_ahead = run_ahead
        self._in_flight: deque[tuple[SchedulerOutput, PendingTokens]] = deque()
        self._alive: dict[RowIndex, EngineSequence] = {}
        self._num_sequences = 0
        self._num_unfinished_tokens = 0
        self._num_steps = 0
        self._num_prefill_tokens = 0
        self._num_output_tokens = 0
        self._num_prompt_tokens = 0
        self._step_seconds = 0.0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has no output yet."""
        return bool(self._alive)

    @property
    def num_unfinished(self) -> int:
        """Requests without an output yet."""
        return len(self._alive)

    def add_requests(self, requests: Sequence[Request]) -> list[RequestOutputs]:
        """Tokenize and queue requests; return the outputs of those that end at once.

        A row that cannot run (its prompt is too long, its template fails, …) ends as an error
        output here and is never queued. `row_index` must be unique among unfinished requests.
        """
        outputs: list[RequestOutputs] = []
        all_encoded = self._tokenizer.encode_requests(
            requests, max_num_tokens=self.limits.max_model_len
        )
        for request, encoded in zip(requests, all_encoded, strict=True):
            output = self._add_encoded(request, encoded)
            if output is not None:
                outputs.append((output,))
        return outputs

    def step(self) -> list[RequestOutputs]:
        """Launch the next step and read the oldest one that is due; return what finished.

        Raises:
            EngineError: The model runner failed, or nothing can make progress.
        """
        started = time.perf_counter()
        scheduled = self._scheduler.schedule()
        if scheduled is not None:
            self._launch(scheduled)
        elif not self._in_flight:
            if self.has_unfinished:
                raise EngineError(
                    f"{self.num_unfinished} requests wait and none can be scheduled",
                    hint="this is a bug of nanobatch; finished rows are kept",
                )
            return []
        is_due = scheduled is None or len(self._in_flight) > self._run_ahead
        outputs = self._read_oldest() if is_due else []
        self._step_seconds += time.perf_counter() - started
        return [(output,) for output in outputs]

    def run(self) -> Iterable[list[RequestOutputs]]:
        """Step until every request has finished, yielding what finished in each step."""
        while self.has_unfinished:
            yield self.step()

    def abort(self, row_indices: Iterable[RowIndex]) -> None:
        """Drop requests without an output; unknown ones are ignored."""
        for row_index in row_indices:
            sequence = self._alive.pop(row_index, None)
            if sequence is not None:
                self._num_unfinished_tokens -= len(sequence.prompt_token_ids)
                self._scheduler.abort(sequence)

    def stats(self) -> EngineStats:
        """Return counters and load as they are now."""
        blocks = self._scheduler.block_manager
        scheduler = self._scheduler.stats()
        return EngineStats(
            num_waiting=scheduler.num_waiting,
            num_unfinished_tokens=self._num_unfinished_tokens,
            num_running=scheduler.num_running,
            num_blocks=blocks.num_blocks,
            num_blocks_used=blocks.num_used_blocks,
            num_blocks_shared=blocks.num_shared_blocks,
            num_blocks_cached=blocks.num_cached_blocks,
            num_steps=self._num_steps,
            num_prefill_tokens=self._num_prefill_tokens,
            num_output_tokens=self._num_output_tokens,
            num_prompt_tokens=self._num_prompt_tokens,
            num_admitted_prompt_tokens=scheduler.num_admitted_prompt_tokens,
            num_cached_tokens=scheduler.num_cached_prompt_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_preempted_tokens=scheduler.num_preempted_tokens,
            step_seconds=self._step_seconds,
        )

    def close(self) -> None:
        """Drop what is in flight and release the device. Safe to call twice."""
        self._in_flight.clear()
        self._alive.clear()
        self._runner.close()

    def _add_encoded(self, request: Request, encoded: TokenIds | RowError) -> RequestOutput | None:
        if isinstance(encoded, RowError):
            return RequestOutput(row_index=request.row_index, error=encoded)
        error = self.limits.check(request, encoded)
        if error is not None:
            return RequestOutput(
                row_index=request.row_index, num_prompt_tokens=len(encoded), error=error
            )
        max_tokens = self.limits.max_tokens(request.params, len(encoded))
        if max_tokens == 0:
            return RequestOutput(
                row_index=request.row_index,
                finish_reason=FinishReason.LENGTH,
                num_prompt_tokens=len(encoded),
            )
        assert request.row_index not in self._alive, "row_index is the request's key"
        sequence = EngineSequence(
            self._num_sequences,
            encoded,
            row_index=request.row_index,
            params=request.params,
            max_tokens=max_tokens,
            noise_seed=self._noise_seed(request),
            eos_token_ids=self.limits.stop_token_ids(request.params),
            priority=request.priority,
        )
        self._num_sequences += 1
        self._num_unfinished_tokens += len(encoded)
        self._alive[request.row_index] = sequence
        self._scheduler.add(sequence)
        return None

    def _noise_seed(self, request: Request) -> int:
        if request.params.seed is not None:
            return request.params.seed % 2**64
        key = np.array([self._run_seed % 2**64, request.row_index], dtype=np.uint64)
        return xxhash.xxh3_64_intdigest(key.tobytes())

    def _launch(self, scheduled: SchedulerOutput) -> None:
        try:
            batch = build_forward_batch(scheduled)
            pending = self._runner.launch(batch)
        except BaseException:
            # Nothing was written: what the step published must not be found by anyone.
            self._scheduler.rollback(scheduled)
            raise
        self._num_prefill_tokens += batch.num_prefill_tokens
        self._in_flight.append((scheduled, pending))

    def _read_oldest(self) -> list[RequestOutput]:
        scheduled, pending = self._in_flight.popleft()
        sampled = pending.result()
        self._num_steps += 1
        finished: list[tuple[EngineSequence, Ending]] = []
        outputs: list[RequestOutput] = []
        for sequence, token_id in self._scheduler.complete(
            scheduled, sampled.token_ids, is_nan=sampled.is_nan, logprobs=sampled.logprobs
        ):
            if token_id is None:
                outputs.append(self._finish_nan(sequence))
                continue
            self._num_output_tokens += 1
            ending = find_ending(
                sequence,
                decode=self._tokenizer.decode,
                is_kv_bound=self.limits.is_kv_bound(sequence),
            )
            if ending is not None:
                self._finish(sequence)
                finished.append((sequence, ending))
        return outputs + self._outputs(finished)

    def _finish(self, sequence: EngineSequence) -> None:
        self._num_prompt_tokens += len(sequence.prompt_token_ids)
        self._num_unfinished_tokens -= len(sequence.prompt_token_ids)
        del self._alive[sequence.row_index]
        self._scheduler.finish(sequence)

    def _finish_nan(self, sequence: EngineSequence) -> RequestOutput:
        self._finish(sequence)
        position = len(sequence.output_token_ids)
        return RequestOutput(
            row_index=sequence.row_index,
            num_prompt_tokens=len(sequence.prompt_token_ids),
            num_cached_tokens=sequence.num_cached_tokens or 0,
            num_completion_tokens=position,
            error=RowError(
                code=ErrorCode.NAN_LOGITS,
                message=f"the model's logits for output token {position} hold NaN or +inf",
            ),
        )

    def _outputs(self, finished: list[tuple[EngineSequence, Ending]]) -> list[RequestOutput]:
        texts = self._tokenizer.decode_all(
            [seq.output_token_ids[: ending.num_text_tokens] for seq, ending in finished]
        )
        return [
            _output(sequence, ending, text)
            for (sequence, ending), text in zip(finished, texts, strict=True)
        ]


def _output(sequence: EngineSequence, ending: Ending, text: str) -> RequestOutput:
    return RequestOutput(
        row_index=sequence.row_index,
        sample_index=sequence.sample_index,
        text=text[: ending.num_text_chars],
        token_ids=tuple(sequence.output_token_ids),
        finish_reason=ending.finish_reason,
        stop_reason=ending.stop_reason,
        num_prompt_tokens=len(sequence.prompt_token_ids),
        num_cached_tokens=sequence.num_cached_tokens or 0,
        num_completion_tokens=len(sequence.output_token_ids),
        logprobs=tuple(sequence.logprobs) if sequence.logprobs else None,
    )
