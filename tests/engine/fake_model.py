"""A model runner without a model, which notices every wrong read of the KV cache.

Its "keys and values" are hashes of the whole prefix up to a token, so a place of the pool holds
the right thing for a sequence exactly when the hash there is that of the sequence's own prefix.
A step first stores all its tokens, then copies what it is told to, hashes being right where they
come to only if they come from the same prefix; then every sequence checks every place it attends
to: by induction over the steps, whatever passes was computed from right values only. The token that
follows a prefix is a function of the prefix's hash, which gives a trivial reference.

A poisoned token spoils what a row computes with it in a prefill from the beginning of its tile on,
as a masked weight of zero does; whoever attends to a spoiled place gets no token, and spoils more.
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
from tests.engine.fake_language import POISONED, ROOT_HASH, FakeLanguage, extend_hash

GARBAGE = 0x7FFFFFFF
"""Stands where a runner may leave anything."""
TILE = 16
"""Positions that attention weighs together."""


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
        self.num_copied_tokens = 0
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
        copies_of_row = self._copies_of_rows(batch)
        are_poisoned: list[bool] = []
        # In their order: a row may read or copy what another stores in the same step.
        for row, state in enumerate(states):
            sources, destinations = copies_of_row[row]
            self._places[destinations] = self._places[sources]
            places = self._attend(batch.block_tables, row, state, seq_len=int(batch.seq_lens[row]))
            are_poisoned.append(self._spoil(places, start=int(batch.positions[bounds[row]])))
        self.num_prefill_tokens += batch.num_tokens
        last_positions = batch.positions[batch.logits_indices].tolist()
        tokens = [
            self._sample(states[row], position, is_poisoned=are_poisoned[row])
            for row, position in zip(batch.logits_rows.tolist(), last_positions, strict=True)
        ]
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
                position = positions[row]
                places = self._attend(batch.block_tables, row, states[row], seq_len=position + 1)
                is_poisoned = self._spoil(places, start=position)
                tokens[row] = self._sample(states[row], position, is_poisoned=is_poisoned)
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

    def _copies_of_rows(self, batch: PrefillBatch) -> list[npt.NDArray[np.int64]]:
        """Return for each row [2, n] what is copied into blocks that it is the first to have."""
        sources, destinations = batch.slot_copies
        assert len(np.unique(destinations)) == len(destinations), "a place is written twice"
        for others, what in (
            (sources, "a source"),
            (batch.slot_mapping, "stored in the same step"),
        ):
            assert not np.isin(destinations, others).any(), f"a destination is {what}"
        starts = batch.block_tables.starts.tolist()
        is_left = np.ones(len(sources), dtype=np.bool_)
        copies_of_rows = []
        for row in range(batch.num_seqs):
            blocks = batch.block_tables.block_ids[starts[row] : starts[row + 1]]
            is_own = is_left & np.isin(destinations // self._block_size, blocks)
            is_left &= ~is_own
            copies_of_rows.append(batch.slot_copies[:, is_own])
        assert not is_left.any(), "nobody wants a copy"
        self.num_copied_tokens += len(sources)
        return copies_of_rows

    def _spoil(self, places: npt.NDArray[np.int64], *, start: int) -> bool:
        """Spoil what a row computed from position start on; return whether its logits are, too."""
        poisoned = np.flatnonzero(self._places[places] == POISONED)
        if len(poisoned) == 0:
            return False
        self._places[places[max(start, poisoned[0] // TILE * TILE) :]] = POISONED
        return True

    def _attend(
        self, block_tables: BlockTables, row: int, state: SlotState, *, seq_len: int
    ) -> npt.NDArray[np.int64]:
        block_size = self._block_size
        num_blocks = -(-seq_len // block_size)
        first, end = block_tables.starts[row : row + 2].tolist()
        assert num_blocks <= end - first, "a block is missing"
        blocks = block_tables.block_ids[first : first + num_blocks].astype(np.int64)
        places = (blocks[:, None] * block_size + np.arange(block_size)).ravel()[:seq_len]
        values = self._places[places]
        is_right = (values == state.hashes[:seq_len]) | (values == POISONED)
        assert is_right.all(), f"row {row} reads a wrong place at {np.flatnonzero(~is_right)}"
        return places

    def _sample(self, state: SlotState, position: int, *, is_poisoned: bool) -> int | None:
        assert position == state.num_tokens - 1, "a token is sampled before the last one"
        token_id = None if is_poisoned else self.language.next_token(int(state.hashes[position]))
        state.append(token_id or 0)
        return token_id


def sampled_tokens(steps: Rows[Rows[int | None]]) -> SampledTokens:
    """Return what these tokens [num_steps][num_rows] are as arrays, None as NaN."""
    tokens = [[GARBAGE if token is None else token for token in step] for step in steps]
    is_nan = [[token is None for token in step] for step in steps]
    return SampledTokens(token_ids=np.array(tokens, np.int32), is_nan=np.array(is_nan, np.bool_))


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
        if self.num_steps % 3:  # else what is given back is missed when it is needed
            self.scheduler.clear_up()
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
