"""The engine: requests in, continuations out. The only place where the stages meet.

    requests ─ tokenizer ▶ sequences ─ scheduler ▶ step ─ batch ▶ arrays ─ runner ▶ tokens ▶ outputs

A step is a prefill, or a *chunk* of decode steps that are launched together. A request has one
sequence per sample and ends when the last of them has. Its samples differ in nothing but their
index, which is half of the noise key, and find the prompt's full blocks in the prefix cache, so
that these are computed once.

Knows nothing of files. Steps are launched up to `run_ahead` ahead of the results being read;
what is in flight is owned by `_in_flight`, oldest first, and read in that order.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence

from nanobatch.engine import outputs
from nanobatch.engine.batch import build_batch
from nanobatch.engine.chunk_length import ChunkLength
from nanobatch.engine.deadlines import Deadlines
from nanobatch.engine.engine_stats import EngineStats
from nanobatch.engine.limits import EngineLimits
from nanobatch.engine.samples import make_samples
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import ScheduledDecode, ScheduledPrefill, SchedulerOutput
from nanobatch.engine.sequence import Sequence as EngineSequence
from nanobatch.engine.step_batch import ModelRunner, PendingTokens, SampledTokens
from nanobatch.engine.stopping import Ending, find_ending
from nanobatch.engine.tokenizer import TokenIds, Tokenizer
from nanobatch.engine.unfinished import UnfinishedRequests
from nanobatch.errors import EngineError
from nanobatch.request import Request, RequestOutput, RequestOutputs, RowError, RowIndex


class EngineCore:
    """Continuous batching over one model runner.

    Args:
        tokenizer: Renders, encodes, decodes.
        scheduler: Decides what each step computes.
        runner: Computes it.
        limits: What fits the model and the KV pool.
        run_seed: Key from which requests without a seed draw theirs.
        run_ahead: Steps launched before the results of the oldest one are read.
        num_decode_steps: Decode steps of a chunk; None goes by measured time.
        deadlines: How long a sequence may take; None lets all take as long as they want.

    Attributes:
        limits: What fits the model and the KV pool.
        num_prefill_tokens: Tokens computed that were not the one new token of a decode step.
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
        num_decode_steps: int | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.limits = limits
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._runner = runner
        self._run_seed = run_seed
        self._run_ahead = run_ahead
        self._chunk_length = ChunkLength(num_decode_steps)
        self._in_flight: deque[tuple[SchedulerOutput, PendingTokens]] = deque()
        self._deadlines = Deadlines(None) if deadlines is None else deadlines
        self._unfinished = UnfinishedRequests()
        self._num_sequences = 0
        self._num_steps = 0
        self.num_prefill_tokens = 0
        self._num_prompt_tokens = 0
        self._num_attended_tokens = 0
        self._num_saved_kv_tokens = 0
        self._step_seconds = 0.0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has no output yet."""
        return len(self._unfinished) > 0

    @property
    def num_unfinished(self) -> int:
        """Requests without an output yet."""
        return len(self._unfinished)

    def add_requests(self, requests: Sequence[Request]) -> list[RequestOutputs]:
        """Tokenize and queue requests; return the outputs of those that end at once.

        A row that cannot run (its prompt is too long, its template fails, …) ends as one error
        output here and is never queued. `row_index` must be unique among unfinished requests.
        """
        all_encoded = self._tokenizer.encode_requests(
            requests, max_num_tokens=self.limits.max_encoded_tokens
        )
        ended = [
            self._add_encoded(request, encoded)
            for request, encoded in zip(requests, all_encoded, strict=True)
        ]
        return [samples for samples in ended if samples is not None]

    def expect_more(self, *, is_more: bool) -> None:
        """Say whether more requests will be added, which is taken not to be so before.

        Among the last ones the longest go first, and a part of a job must not take itself for them.
        """
        self._scheduler.expect_more(is_more=is_more)

    def step(self) -> list[RequestOutputs]:
        """Launch the next step and read the oldest one that is due; return what finished.

        Raises:
            EngineError: The model runner failed, or nothing can make progress.
        """
        started_s = time.perf_counter()
        self._scheduler.num_decode_steps = self._chunk_length.begin_turn(started_s)
        is_idle = self._run_ahead > 0 and not self._in_flight
        scheduled = self._scheduler.schedule(is_device_idle=is_idle)
        if scheduled is not None:
            self._launch(scheduled)
        elif not self._in_flight:
            if self.has_unfinished:
                raise EngineError(
                    f"{self.num_unfinished} requests wait and none can be scheduled",
                    hint="this is a bug of nanobatch; finished rows are kept",
                )
            return []
        self._scheduler.clear_up()  # the device is at work now
        is_due = scheduled is None or len(self._in_flight) > self._run_ahead
        ended = self._read_oldest() if is_due else []
        # Last, since a launch that fails would lose them; who has just finished is not late.
        ended += self._end_late()
        self._step_seconds += time.perf_counter() - started_s
        return self._collect(ended)

    def run(self) -> Iterable[list[RequestOutputs]]:
        """Step until every request has finished, yielding what finished in each step."""
        while self.has_unfinished:
            yield self.step()

    def abort(self, row_indices: Iterable[RowIndex]) -> None:
        """Drop requests without an output; unknown ones are ignored."""
        for row_index in row_indices:
            for sequence in self._unfinished.remove(row_index):
                self._deadlines.end(sequence)
                self._scheduler.abort(sequence)

    def stats(self) -> EngineStats:
        """Return counters and load as they are now."""
        if not self.has_unfinished:
            self._scheduler.clear_up()  # no step follows in which it would be
        blocks = self._scheduler.block_manager
        scheduler = self._scheduler.stats()
        return EngineStats(
            num_waiting=scheduler.num_waiting,
            num_unfinished_tokens=self._unfinished.num_prompt_tokens,
            num_running=scheduler.num_running,
            num_blocks=blocks.num_blocks,
            num_blocks_used=blocks.num_used_blocks,
            num_blocks_shared=blocks.num_shared_blocks,
            num_blocks_cached=blocks.num_cached_blocks,
            num_steps=self._num_steps,
            num_prefill_tokens=self.num_prefill_tokens,
            num_output_tokens=scheduler.num_output_tokens,
            num_prompt_tokens=self._num_prompt_tokens,
            num_admitted_prompt_tokens=scheduler.num_admitted_prompt_tokens,
            num_cached_tokens=scheduler.num_cached_prompt_tokens,
            num_attended_tokens=self._num_attended_tokens,
            num_saved_kv_tokens=self._num_saved_kv_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_preempted_tokens=scheduler.num_preempted_tokens,
            step_seconds=self._step_seconds,
        )

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache; no request may be unfinished."""
        assert not self.has_unfinished, "the prefix cache is in use"
        self._scheduler.clear_up()
        self._scheduler.block_manager.reset_prefix_cache()

    def close(self) -> None:
        """Drop what is in flight and release the device. Safe to call twice."""
        self._in_flight.clear()
        self._unfinished.clear()
        self._deadlines.clear()
        self._runner.close()

    def _add_encoded(self, request: Request, encoded: TokenIds | RowError) -> RequestOutputs | None:
        if isinstance(encoded, RowError):
            return outputs.refusal(request, encoded)
        prompt = self.limits.fitted(request.params, encoded)
        lengths = {
            "num_prompt_tokens": len(prompt),
            "num_truncated_tokens": len(encoded) - len(prompt),
        }
        error = self.limits.check(request, prompt)
        if error is not None:
            return outputs.refusal(request, error, **lengths)
        if self.limits.max_tokens(request.params, len(prompt)) == 0:
            return outputs.empty_answers(request, **lengths)
        sequences = make_samples(
            request,
            prompt,
            limits=self.limits,
            first_id=self._num_sequences,
            run_seed=self._run_seed,
            num_truncated_tokens=lengths["num_truncated_tokens"],
        )
        self._num_sequences += len(sequences)
        self._unfinished.add(sequences)
        for sequence in sequences:
            self._scheduler.add(sequence)
        return None

    def _launch(self, scheduled: SchedulerOutput) -> None:
        try:
            pending = self._runner.launch(build_batch(scheduled))
        except BaseException:
            # Nothing was written: what the step published must not be found by anyone.
            self._scheduler.rollback(scheduled)
            raise
        self._in_flight.append((scheduled, pending))
        if isinstance(scheduled, ScheduledPrefill):
            self.num_prefill_tokens += scheduled.num_tokens
            self._deadlines.begin(scheduled.admitted)
        else:
            self._num_attended_tokens += scheduled.num_attended_tokens
            self._chunk_length.note_launch()

    def _read_oldest(self) -> list[RequestOutput]:
        scheduled, pending = self._in_flight.popleft()
        sampled = self._wait(scheduled, pending)
        self._num_steps += scheduled.num_steps
        answered: list[tuple[EngineSequence, Ending]] = []
        ended: list[RequestOutput] = []
        for sequence, ending in self._scheduler.complete(
            scheduled, sampled, find_ending=self._find_ending
        ):
            self._deadlines.end(sequence)
            if ending is None:
                ended.append(outputs.nan_logits(sequence))
            else:
                answered.append((sequence, ending))
        return ended + self._answers(answered)

    def _wait(self, scheduled: SchedulerOutput, pending: PendingTokens) -> SampledTokens:
        started_s = time.perf_counter()
        sampled = pending.result()
        self._chunk_length.note_wait(time.perf_counter() - started_s)
        self._num_saved_kv_tokens += sampled.num_saved_kv_tokens
        if isinstance(scheduled, ScheduledDecode) and sampled.device_seconds is not None:
            self._chunk_length.note_device(sampled.device_seconds, scheduled.num_steps)
        return sampled

    def _find_ending(self, sequence: EngineSequence) -> Ending | None:
        return find_ending(
            sequence,
            decode=self._tokenizer.decode,
            is_kv_bound=self.limits.is_kv_bound(sequence),
        )

    def _end_late(self) -> list[RequestOutput]:
        """End the sequences that are past their time, wherever they are."""
        ended: list[RequestOutput] = []
        for sequence, elapsed_s in self._deadlines.late():
            assert self._deadlines.timeout_s is not None, "without a time nobody is late"
            self._deadlines.end(sequence)
            self._scheduler.abort(sequence)
            ended.append(
                outputs.timed_out(
                    sequence, elapsed_s=elapsed_s, timeout_s=self._deadlines.timeout_s
                )
            )
        return ended

    def _answers(self, answered: list[tuple[EngineSequence, Ending]]) -> list[RequestOutput]:
        texts = self._tokenizer.decode_all(
            [seq.output_token_ids[: ending.num_text_tokens] for seq, ending in answered]
        )
        return [
            outputs.answer(sequence, ending, text)
            for (sequence, ending), text in zip(answered, texts, strict=True)
        ]

    def _collect(self, ended: list[RequestOutput]) -> list[RequestOutputs]:
        """Return the requests that are complete with these samples."""
        complete: list[RequestOutputs] = []
        for output in ended:
            samples = self._unfinished.collect(output)
            if samples is not None:
                self._num_prompt_tokens += output.num_prompt_tokens
                complete.append(samples)
        return complete
