"""A model runner without a model, which notices every wrong read of the KV cache.

Its "keys and values" are hashes of the whole prefix up to a token, so a place of the pool holds
the right thing for a sequence exactly when the hash there is that of the sequence's own prefix.
A step first stores all its tokens, then every sequence checks every place it attends to: by
induction over the steps, whatever passes was computed from right values only. The token that
follows a prefix is a function of the prefix's hash, which gives a trivial reference.
"""

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nanobatch.engine.batch import build_batch
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.scheduler_output import SchedulerOutput
from nanobatch.engine.sequence import Sequence, SlotAssignment
from nanobatch.engine.step_batch import (
    BlockTables,
    DecodeBatch,
    PrefillBatch,
    SampledTokens,
    StepBatch,
)
from nanobatch.engine.stopping import Ending, find_ending

ROOT_HASH = 0x5EED
GARBAGE = 0x7FFFFFFF
"""Stands where a runner may leave anything."""


def extend_hash(prefix_hash: int, token_id: int) -> int:
    """Return the hash of a prefix that is one token longer."""
    return hash((prefix_hash, token_id))


@dataclass(frozen=True)
class FakeLanguage:
    """What the fake model says.

    Sequences that it may end need `eos_token_ids` of `(0,)`.

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

    def launch(self, batch: StepBatch) -> FakePending:
        assert len(set(batch.row_ids.tolist())) == batch.num_seqs, "a slot is in the batch twice"
        self._num_computed_tokens += batch.num_tokens
        sampled = self._decode(batch) if isinstance(batch, DecodeBatch) else self._prefill(batch)
        return FakePending(sampled)

    def _prefill(self, batch: PrefillBatch) -> SampledTokens:
        for assignment in batch.slot_assignments:
            self._assign(assignment)
        states = [self._slots[slot] for slot in batch.row_ids.tolist()]
        hashes = np.empty(batch.num_tokens, dtype=np.int64)
        bounds = batch.query_start_loc.tolist()
        for row, state in enumerate(states):
            own = slice(bounds[row], bounds[row + 1])
            positions = batch.positions[own]
            assert positions[-1] + 1 == batch.seq_lens[row] <= state.num_tokens
            assert (np.diff(positions) == 1).all(), "a sequence's tokens are not consecutive"
            is_right = batch.input_ids[own] == state.tokens[positions]
            assert is_right.all(), "a wrong token is computed"
            hashes[own] = state.hashes[positions]
        self._store(batch.slot_mapping, hashes)
        for row, state in enumerate(states):
            self._attend(batch.block_tables, row, state, seq_len=int(batch.seq_lens[row]))
        self.num_prefill_tokens += batch.num_tokens
        last_positions = batch.positions[batch.logits_indices].tolist()
        samplers = [states[row] for row in batch.logits_rows.tolist()]
        tokens = [self._sample(*pair) for pair in zip(samplers, last_positions, strict=True)]
        return sampled_tokens([tokens])

    def _decode(self, batch: DecodeBatch) -> SampledTokens:
        """Compute the steps one after the other; what is past a row's steps is garbage."""
        states = [self._slots[slot] for slot in batch.row_ids.tolist()]
        num_steps_of_rows = batch.num_steps_of_rows.tolist()
        assert max(num_steps_of_rows) == batch.num_steps and min(num_steps_of_rows) > 0
        steps: list[list[int | None]] = []
        for step in range(batch.num_steps):
            rows = [row for row, num_steps in enumerate(num_steps_of_rows) if step < num_steps]
            positions = {row: int(batch.positions[row]) + step for row in rows}
            self._store(
                np.array([self._place(batch.block_tables, row, positions[row]) for row in rows]),
                np.array([states[row].hashes[positions[row]] for row in rows]),
            )
            tokens: list[int | None] = [GARBAGE] * len(states)
            for row in rows:
                self._attend(batch.block_tables, row, states[row], seq_len=positions[row] + 1)
                tokens[row] = self._sample(states[row], positions[row])
            steps.append(tokens)
        return sampled_tokens(steps)

    def _assign(self, assignment: SlotAssignment) -> None:
        state = self._slots[assignment.slot]
        state.num_tokens = 0
        for token_id in assignment.prompt_token_ids.tolist():
            state.append(token_id)
        for token_id in assignment.output_token_ids.tolist():
            state.append(token_id)

    def _place(self, block_tables: BlockTables, row: int, position: int) -> int:
        first, end = block_tables.starts[row : row + 2].tolist()
        assert first + position // self._block_size < end, "a block is missing"
        block_id = int(block_tables.block_ids[first + position // self._block_size])
        return block_id * self._block_size + position % self._block_size

    def _store(self, places: npt.NDArray[np.int64], hashes: npt.NDArray[np.int64]) -> None:
        self._places[places] = hashes
        assert (self._places[places] == hashes).all(), "two tokens share a place"

    def _attend(
        self, block_tables: BlockTables, row: int, state: SlotState, *, seq_len: int
    ) -> None:
        block_size = self._block_size
        num_blocks = -(-seq_len // block_size)
        first, end = block_tables.starts[row : row + 2].tolist()
        assert num_blocks <= end - first, "a block is missing"
        blocks = block_tables.block_ids[first : first + num_blocks].astype(np.int64)
        places = (blocks[:, None] * block_size + np.arange(block_size)).ravel()[:seq_len]
        is_right = self._places[places] == state.hashes[:seq_len]
        assert is_right.all(), f"row {row} reads a wrong place at {np.flatnonzero(~is_right)}"

    def _sample(self, state: SlotState, position: int) -> int | None:
        assert position == state.num_tokens - 1, "a token is sampled before the last one"
        token_id = self.language.next_token(int(state.hashes[position]))
        state.append(token_id or 0)
        return token_id


def sampled_tokens(steps: Rows[Rows[int | None]]) -> SampledTokens:
    """Return what these tokens [num_steps][num_rows] are as arrays, None as NaN."""
    return SampledTokens(
        token_ids=np.array(
            [[GARBAGE if token is None else token for token in step] for step in steps], np.int32
        ),
        is_nan=np.array([[token is None for token in step] for step in steps], np.bool_),
    )


def ending_by_tokens(seq: Sequence) -> Ending | None:
    """Return how a sequence without stop strings ends."""
    return find_ending(seq, decode=lambda _: "", is_kv_bound=False)


class Loop:
    """Turns the crank as the engine's core does, on the fake model.

    Args:
        scheduler: Under test.
        runner: The fake model.
        run_ahead: Steps launched before the oldest result is read.
        num_decode_steps: Decode steps of a chunk.
        fails: Says of each step whether its launch fails, so that it is rolled back.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: FakeModelRunner,
        *,
        run_ahead: int = 0,
        num_decode_steps: int = 1,
        fails: Callable[[], bool] = lambda: False,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.run_ahead = run_ahead
        scheduler.num_decode_steps = num_decode_steps
        self.fails = fails
        self.in_flight: deque[tuple[SchedulerOutput, FakePending]] = deque()
        self.failed: set[int] = set()
        self.num_steps = 0

    def step(self) -> bool:
        """Launch a step and read the one that is due; return whether anything happened."""
        output = self.scheduler.schedule()
        if output is not None and self.fails():
            self.scheduler.rollback(output)
            return True
        if output is not None:
            self.in_flight.append((output, self.runner.launch(build_batch(output))))
            self.num_steps += 1
        if self.in_flight and (output is None or len(self.in_flight) > self.run_ahead):
            self.read_oldest()
            return True
        return output is not None

    def read_oldest(self) -> None:
        """Hand the oldest result to the scheduler, which ends what has ended."""
        output, pending = self.in_flight.popleft()
        for seq, ending in self.scheduler.complete(
            output, pending.result(), find_ending=ending_by_tokens
        ):
            if ending is None:
                self.failed.add(seq.seq_id)

    def output(self, seq: Sequence) -> list[int | None]:
        """Return what a sequence got, None at its end where its logits failed."""
        return [*seq.output_token_ids, *([None] if seq.seq_id in self.failed else [])]

    def run(self, seqs: Iterable[Sequence] = (), *, max_num_steps: int = 100_000) -> None:
        """Add sequences and step until nothing happens any more."""
        for seq in seqs:
            self.scheduler.add(seq)
        while self.step():
            assert self.num_steps <= max_num_steps, "no end in sight"
