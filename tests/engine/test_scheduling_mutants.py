"""The random runs can fail: each mutant is caught by the fake model alone."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.cache_entry import CacheEntry
from nanobatch.engine.decode_steps import DecodeSteps
from nanobatch.engine.lifecycle import Lifecycle
from nanobatch.engine.prefix_cache import PrefixCache
from nanobatch.engine.scheduler_output import ScheduledDecode, SchedulerOutput
from nanobatch.engine.sequence import Sequence
from nanobatch.engine.step_batch import BlockTables, DecodeBatch, PrefillBatch, StepBatch
from nanobatch.engine.token_intake import StopTokenTable, TokenIntake
from tests.engine.fake_model import FakeModelRunner, FakePending
from tests.engine.random_runs import Parts, is_caught


class PublishesUnscheduledBlocks(BlockManager):
    def publish(self, seq: Sequence, num_tokens: int) -> bool:
        return super().publish(seq, max(num_tokens, seq.num_tokens))


class KeepsPublicationsOfFailedSteps(BlockManager):
    def withdraw(self, seq: Sequence, num_entries: int) -> None:
        del seq.prefix_entry_ids[num_entries:]


class ForgetsEntriesTooLate(BlockManager):
    def append_blocks(self, seq: Sequence, num_blocks: int) -> None:
        block_ids = self._free_blocks.pop_oldest(num_blocks)
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        seq.block_table.extend(block_ids)


class FreesSharedBlocks(BlockManager):
    def _acquire(self, block_ids: Iterable[int]) -> None:
        held = [*block_ids]
        super()._acquire(held)
        for block_id in held:
            self._ref_counts[block_id] = 1


class StoresOnePlaceTooFar(FakeModelRunner):
    def _store(self, places: npt.NDArray[np.int64], hashes: npt.NDArray[np.int64]) -> None:
        super()._store((places + 1) % len(self._places), hashes)


class MixesUpBlockTables(FakeModelRunner):
    def launch(self, batch: StepBatch) -> FakePending:
        tables = batch.block_tables
        return super().launch(
            replace(
                batch,
                block_tables=BlockTables(
                    block_ids=np.roll(tables.block_ids, 1), starts=tables.starts
                ),
            )
        )


class TakesTokensFromOtherSlots(FakeModelRunner):
    def launch(self, batch: StepBatch) -> FakePending:
        if isinstance(batch, PrefillBatch):
            return super().launch(batch)
        return super().launch(replace(batch, row_ids=batch.row_ids[::-1]))


class TakesOneStepTooMany(FakeModelRunner):
    def launch(self, batch: StepBatch) -> FakePending:
        if isinstance(batch, DecodeBatch):
            num_steps = np.minimum(batch.num_steps_of_rows + 1, batch.num_steps)
            batch = replace(batch, num_steps_of_rows=num_steps)
        return super().launch(batch)


@pytest.mark.parametrize(
    "parts",
    [
        Parts(manager=PublishesUnscheduledBlocks),
        Parts(manager=KeepsPublicationsOfFailedSteps),
        Parts(manager=ForgetsEntriesTooLate),
        Parts(manager=FreesSharedBlocks),
        Parts(runner=StoresOnePlaceTooFar),
        Parts(runner=MixesUpBlockTables),
        Parts(runner=TakesTokensFromOtherSlots),
        Parts(runner=TakesOneStepTooMany),
    ],
    ids=lambda parts: next(
        part.__name__
        for part in (parts.manager, parts.runner)
        if part not in (BlockManager, FakeModelRunner)
    ),
)
def test_a_mutant_is_caught_by_the_fake_model_alone(parts: Parts) -> None:
    assert is_caught(replace(parts, has_integrity_checks=False))


def trust_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PrefixCache, "find", lambda self, block_hash, *_: self._by_hash.get(block_hash)
    )


def ignore_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(self: PrefixCache, block_hash: bytes, _: int, tokens: bytes) -> CacheEntry | None:
        entry = self._by_hash.get(block_hash)
        return entry if entry is not None and entry.token_bytes == tokens else None

    monkeypatch.setattr(PrefixCache, "find", mutant)


def forget_owed_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    preempt = Lifecycle.preempt

    def mutant(self: Lifecycle, seq: Sequence) -> None:
        preempt(self, seq)
        seq.num_in_flight = 0

    monkeypatch.setattr(Lifecycle, "preempt", mutant)


def admit_draining_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    admit_next = Lifecycle.admit_next

    def mutant(self: Lifecycle) -> Sequence | None:
        seq = self._next()
        if seq is None:
            return None
        owed, seq.num_in_flight = seq.num_in_flight, 0
        admitted = admit_next(self)
        seq.num_in_flight = owed
        return admitted

    monkeypatch.setattr(Lifecycle, "admit_next", mutant)
    monkeypatch.setattr(Lifecycle, "is_next_draining", False)


def allocate_no_block_for_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    append_blocks = Lifecycle.append_blocks
    monkeypatch.setattr(
        Lifecycle,
        "append_blocks",
        lambda self, seq, num_tokens: append_blocks(self, seq, num_tokens - 1),
    )


def decode_past_max_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    make_step = DecodeSteps.make_step

    def mutant(self: DecodeSteps, num_steps: int) -> ScheduledDecode | None:
        output = make_step(self, num_steps)
        if output is None:
            return None
        for row, num_tokens in output.last_rows.items():
            output.sampled[row].num_in_flight += output.num_steps - num_tokens
        return replace(output, last_rows={})

    monkeypatch.setattr(DecodeSteps, "make_step", mutant)


def keep_tokens_after_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    take = TokenIntake.take

    def mutant(self: TokenIntake, output: SchedulerOutput, stop_tokens: StopTokenTable) -> None:
        take(self, output, stop_tokens)
        rows = [*output.sampled]
        for seq, ending in self.ended:
            is_in_chunk = ending is not None and output.num_steps > len(seq.output_token_ids)
            if is_in_chunk:
                seq.output_token_ids.append(int(self.sampled.token_ids[-1, rows.index(seq)]))

    monkeypatch.setattr(TokenIntake, "take", mutant)


def overlook_ends_within_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    contain = StopTokenTable.contain

    def mutant(self: StopTokenTable, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        is_stop = contain(self, token_ids)
        is_stop[:-1] = False
        return is_stop

    monkeypatch.setattr(StopTokenTable, "contain", mutant)


def end_all_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lifecycle, "distrust", lambda _, seq: False)


def take_tokens_owed_from_before_a_new_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    distrust = Lifecycle.distrust

    def mutant(self: Lifecycle, seq: Sequence) -> bool:
        is_sent_back = distrust(self, seq)
        seq.drops_owed_tokens = False
        return is_sent_back

    monkeypatch.setattr(Lifecycle, "distrust", mutant)


@pytest.mark.parametrize(
    "mutate",
    [
        trust_hashes,
        ignore_parents,
        forget_owed_tokens,
        admit_draining_sequences,
        allocate_no_block_for_the_last_step,
        decode_past_max_tokens,
        keep_tokens_after_an_end,
        overlook_ends_within_a_chunk,
        end_all_that_fail,
        take_tokens_owed_from_before_a_new_beginning,
    ],
)
def test_a_mutated_scheduler_is_caught_by_the_fake_model_alone(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert is_caught(Parts(has_integrity_checks=False))
