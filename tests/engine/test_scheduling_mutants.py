"""The random runs can fail: each mutant is caught by the fake model alone."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from nanobatch.engine.batch import ForwardBatch
from nanobatch.engine.block_manager import BlockManager, CacheEntry
from nanobatch.engine.scheduler import Scheduler
from nanobatch.engine.sequence import Sequence
from tests.engine.fake_model import FakeModelRunner, FakePending
from tests.engine.random_runs import (
    NUM_CONFIGURATIONS,
    Parts,
    Run,
)


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
