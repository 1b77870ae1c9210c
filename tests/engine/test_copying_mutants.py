"""The random runs can fail: faults in copying a beginning of a block are caught, too."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nanobatch.engine.block_manager import BlockManager
from nanobatch.engine.cache_entry import CacheEntry
from nanobatch.engine.copy_sources import BlockCopy, CopySources
from nanobatch.engine.sequence import Sequence
from nanobatch.engine.step_batch import PrefillBatch, SampledTokens
from tests.engine.fake_model import FakeModelRunner
from tests.engine.random_runs import Parts, is_caught


class GivesSourcesAway(BlockManager):
    def _hold_source(self, seq: Sequence, num_fresh: int) -> tuple[int | None, int]:
        with pytest.MonkeyPatch.context() as context:
            context.setattr(self, "_acquire", lambda _: None)
            return super()._hold_source(seq, num_fresh)

    def take_copies(self) -> list[BlockCopy]:
        copies, self._copies = self._copies, []
        return copies


class MakesNoCopies(FakeModelRunner):
    def _prefill(self, batch: PrefillBatch) -> SampledTokens:
        return super()._prefill(replace(batch, slot_copies=batch.slot_copies[:, :0]))


class CopiesBeforeItStores(FakeModelRunner):
    def _prefill(self, batch: PrefillBatch) -> SampledTokens:
        sources, destinations = batch.slot_copies
        self._places[destinations] = self._places[sources]
        return super()._prefill(replace(batch, slot_copies=batch.slot_copies[:, :0]))


@pytest.mark.parametrize(
    "parts",
    [
        Parts(manager=GivesSourcesAway),
        Parts(runner=MakesNoCopies),
        Parts(runner=CopiesBeforeItStores),
    ],
    ids=["GivesSourcesAway", "MakesNoCopies", "CopiesBeforeItStores"],
)
def test_a_mutant_is_caught_by_the_fake_model_alone(parts: Parts) -> None:
    assert is_caught(replace(parts, has_integrity_checks=False))


def copy_one_token_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    find = CopySources.find

    def mutant(self: CopySources, *args: Any) -> tuple[CacheEntry | None, int]:
        entry, num_tokens = find(self, *args)
        return entry, min(num_tokens + 1, len(args[1]) // 4)

    monkeypatch.setattr(CopySources, "find", mutant)


def copy_what_follows_another_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    find = CopySources.find

    def mutant(self: CopySources, _: int, tokens: bytes) -> tuple[CacheEntry | None, int]:
        return max(
            (find(self, parent_id, tokens) for parent_id in self._by_parent),
            key=lambda found: found[1],
            default=(None, 0),
        )

    monkeypatch.setattr(CopySources, "find", mutant)


def copy_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(copies: list[BlockCopy], *, block_size: int) -> npt.NDArray[np.int64]:
        slots = [
            (copy.source * block_size + offset, copy.destination * block_size + offset)
            for copy in copies
            for offset in range(copy.num_tokens)
        ]
        return np.array(slots, dtype=np.int64).reshape(-1, 2).T

    monkeypatch.setattr("nanobatch.engine.batch._slot_copies", mutant)


def keep_forgotten_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopySources, "remove", lambda _, entry: None)


@pytest.mark.parametrize(
    "mutate",
    [
        copy_one_token_too_many,
        copy_what_follows_another_beginning,
        copy_copies,
        keep_forgotten_sources,
    ],
)
def test_a_mutated_scheduler_is_caught_by_the_fake_model_alone(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert is_caught(Parts(has_integrity_checks=False))
