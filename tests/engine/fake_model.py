"""A model runner without a model, which notices every wrong read of the KV cache.

Its "keys and values" are hashes of the whole prefix up to a token, so a place of the pool holds
the right thing for a sequence exactly when the hash there is that of the sequence's own prefix.
A step first stores all its tokens, then every sequence checks every place it attends to: by
induction over the steps, whatever passes was computed from right values only. The token that
follows a prefix is a function of the prefix's hash, which gives a trivial reference.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nanobatch.engine.batch import ForwardBatch, SampledTokens, build_forward_batch
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import SchedulerOutput
from nanobatch.engine.sequence import Sequence, SlotAssignment

ROOT_HASH = 0x5EED


def extend_hash(prefix_hash: int, token_id: int) -> int:
    """Return the hash of a prefix that is one token longer."""
    return hash((prefix_hash, token_id))


@dataclass(frozen=True)
class FakeLanguage:
    """What the fake model says.

    Attributes:
        vocab_size: Token ids it uses.
        eos_one_in: One prefix in this many is followed by the end-of-sequence token 0.
        nan_one_in: One prefix in this many has logits that are not numbers, None for none.
    """

    vocab_size: int = 50
    eos_one_in: int | None = 12
    nan_one_in: int | None = None

    def next_token(self, prefix_hash: int) -> int | None:
        """Return the token that follows, None where there is none."""
        draw = hash((prefix_hash, 7)) & 0x7FFFFFFFFFFF
        if self.nan_one_in is not None and draw % self.nan_one_in == 1:
            return None
        if self.eos_one_in is not None and (draw >> 8) % self.eos_one_in == 0:
            return 0
        return 1 + (draw >> 16) % (self.vocab_size - 1)

    def continue_alone(
        self, prompt: list[int], max_tokens: int, *, ignore_eos: bool = False
    ) -> list[int | None]:
        """Generate what a lone sequence gets, None at its end where its logits fail."""
        prefix_hash = ROOT_HASH
        for token_id in prompt:
            prefix_hash = extend_hash(prefix_hash, token_id)
        output: list[int | None] = []
        while len(output) < max_tokens:
            next_token = self.next_token(prefix_hash)
            output.append(next_token)
            if next_token is None or (next_token == 0 and not ignore_eos):
                break
            prefix_hash = extend_hash(prefix_hash, next_token)
        return output


@dataclass
class SlotState:
    """What the device knows of the sequence in a slot.

    Attributes:
        tokens: [capacity] its tokens.
        hashes: [capacity] hash of the prefix up to and including each.
        num_tokens: How many there are.
    """

    tokens: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(64, np.int32))
    hashes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(64, np.int64))
    num_tokens: int = 0

    def append(self, token_id: int) -> None:
        if self.num_tokens == len(self.tokens):
            self.tokens = np.resize(self.tokens, 2 * self.num_tokens)
            self.hashes = np.resize(self.hashes, 2 * self.num_tokens)
        prefix_hash = int(self.hashes[self.num_tokens - 1]) if self.num_tokens else ROOT_HASH
        self.tokens[self.num_tokens] = token_id
        self.hashes[self.num_tokens] = extend_hash(prefix_hash, token_id)
        self.num_tokens += 1


class FakePending:
    """The result of a step, handed out when asked for."""

    def __init__(self, sampled: SampledTokens) -> None:
        self._sampled = sampled

    def result(self) -> SampledTokens:
        return self._sampled


class FakeModelRunner:
    """Implements `ModelRunner`; raises AssertionError at the first wrong place."""

    def __init__(
        self, num_blocks: int, block_size: int, *, max_num_seqs: int, language: FakeLanguage
    ) -> None:
        self.language = language
        self._block_size = block_size
        self.num_prefill_tokens = 0
        self._num_computed_tokens = 0
        self._places = np.full(num_blocks * block_size, -1, dtype=np.int64)
        self._slots = [SlotState() for _ in range(max_num_seqs)]

    @property
    def num_computed_tokens(self) -> int:
        return self._num_computed_tokens

    def close(self) -> None:
        self._slots.clear()

    def launch(self, batch: ForwardBatch) -> FakePending:
        for assignment in batch.slot_assignments:
            self._assign(assignment)
        assert len(set(batch.row_ids.tolist())) == batch.num_seqs, "a slot is in the batch twice"
        input_ids = self._fill_in_last_tokens(batch)
        states = [self._slots[slot] for slot in batch.row_ids.tolist()]
        hashes = np.empty(batch.num_tokens, dtype=np.int64)
        bounds = batch.query_start_loc.tolist()
        for row, state in enumerate(states):
            own = slice(bounds[row], bounds[row + 1])
            positions = batch.positions[own]
            assert positions[-1] + 1 == batch.seq_lens[row] <= state.num_tokens
            assert (np.diff(positions) == 1).all(), "a sequence's tokens are not consecutive"
            assert (input_ids[own] == state.tokens[positions]).all(), "a wrong token is computed"
            hashes[own] = state.hashes[positions]
        self._places[batch.slot_mapping] = hashes
        assert (self._places[batch.slot_mapping] == hashes).all(), "two tokens share a place"
        for row, state in enumerate(states):
            self._attend(batch, row, state)
        self._num_computed_tokens += batch.num_tokens
        self.num_prefill_tokens += batch.num_prefill_tokens
        return FakePending(self._sample(batch, states))

    def _assign(self, assignment: SlotAssignment) -> None:
        state = self._slots[assignment.slot]
        state.num_tokens = 0
        for token_id in assignment.prompt_token_ids.tolist():
            state.append(token_id)
        for token_id in assignment.output_token_ids.tolist():
            state.append(token_id)

    def _fill_in_last_tokens(self, batch: ForwardBatch) -> npt.NDArray[np.int32]:
        input_ids = batch.input_ids.copy()
        for index, row in zip(batch.last_token_indices, batch.last_token_rows, strict=True):
            assert input_ids[index] == 0, "a token is known and yet on the device"
            state = self._slots[batch.row_ids[row]]
            input_ids[index] = state.tokens[state.num_tokens - 1]
        return input_ids

    def _attend(self, batch: ForwardBatch, row: int, state: SlotState) -> None:
        seq_len = int(batch.seq_lens[row])
        block_size = self._block_size
        num_blocks = -(-seq_len // block_size)
        blocks = batch.block_tables[row, :num_blocks].astype(np.int64)
        places = (blocks[:, None] * block_size + np.arange(block_size)).ravel()[:seq_len]
        is_right = self._places[places] == state.hashes[:seq_len]
        assert is_right.all(), f"row {row} reads a wrong place at {np.flatnonzero(~is_right)}"

    def _sample(self, batch: ForwardBatch, states: list[SlotState]) -> SampledTokens:
        token_ids = np.zeros(len(batch.logits_rows), dtype=np.int32)
        is_nan = np.zeros(len(batch.logits_rows), dtype=np.bool_)
        for index, row in enumerate(batch.logits_rows.tolist()):
            state = states[row]
            position = int(batch.positions[batch.logits_indices[index]])
            assert position == state.num_tokens - 1, "a token is sampled before the last one"
            token_id = self.language.next_token(int(state.hashes[position]))
            is_nan[index] = token_id is None
            token_ids[index] = token_id or 0
            state.append(token_id or 0)
        return SampledTokens(token_ids=token_ids, is_nan=is_nan)


class Loop:
    """Turns the crank as the engine's core does, on the fake model.

    Args:
        scheduler: Under test.
        runner: The fake model.
        run_ahead: Steps launched before the oldest result is read.
        fails: Says of each step whether its launch fails, so that it is rolled back.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: FakeModelRunner,
        *,
        run_ahead: int = 0,
        fails: Callable[[], bool] = lambda: False,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.run_ahead = run_ahead
        self.fails = fails
        self.in_flight: deque[tuple[SchedulerOutput, FakePending]] = deque()
        self.outputs: dict[int, list[int | None]] = {}
        self.num_steps = 0

    def step(self) -> bool:
        """Launch a step and read the one that is due; return whether anything happened."""
        output = self.scheduler.schedule()
        if output is not None and self.fails():
            self.scheduler.rollback(output)
            return True
        if output is not None:
            self.in_flight.append((output, self.runner.launch(build_forward_batch(output))))
            self.num_steps += 1
        if self.in_flight and (output is None or len(self.in_flight) > self.run_ahead):
            self.read_oldest()
            return True
        return output is not None

    def read_oldest(self) -> None:
        """Hand the oldest result to the scheduler and end what has ended."""
        output, pending = self.in_flight.popleft()
        sampled = pending.result()
        for seq, token_id in self.scheduler.complete(
            output, sampled.token_ids, is_nan=sampled.is_nan, logprobs=sampled.logprobs
        ):
            tokens = self.outputs.setdefault(seq.seq_id, [])
            tokens.append(token_id)
            is_eos = token_id == 0 and not seq.params.ignore_eos
            if token_id is None or is_eos or len(tokens) == seq.max_tokens:
                self.scheduler.finish(seq)

    def run(self, seqs: Iterable[Sequence] = (), *, max_num_steps: int = 100_000) -> None:
        """Add sequences and step until nothing happens any more."""
        for seq in seqs:
            self.scheduler.add(seq)
        while self.step():
            assert self.num_steps <= max_num_steps, "no end in sight"
