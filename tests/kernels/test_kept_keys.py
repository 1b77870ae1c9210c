"""Steps over kept keys equal steps that gather anew; what is kept is given up where it must be."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from nanobatch.kernels import kept_keys
from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.kept_keys import NUM_KEPT_STEPS, DecodePlanner, KeepKeys, KeptAttention
from nanobatch.kernels.kv_cache import KVCache, KVCacheSpec, store_keys_values
from nanobatch.kernels.step_attention import ModelAttention
from nanobatch.kernels.torch_attention import plan_model_attention

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_LAYERS = 4, 2
SHAPE = (2, 8)
"""KV heads and their dimensions."""


@dataclass
class Decoding:
    """Rows that decode over a NaN-filled pool, two layers of it; the first blocks are shared."""

    lens: np.ndarray
    window: int | None = None
    seed: int = 0
    dtype: torch.dtype = torch.float64
    scale: float = 0.3
    keep_keys: KeepKeys | None = None

    def __post_init__(self) -> None:
        self.rng = torch.Generator().manual_seed(self.seed)
        num_rows, num_shared = len(self.lens), int(self.lens.min() - 1) // BLOCK_SIZE
        num_blocks = num_rows * 40
        order = np.random.default_rng(self.seed).permutation(num_blocks).astype(np.int32)
        self.tables = order.reshape(num_rows, 40)
        self.tables[:, :num_shared] = self.tables[0, :num_shared]
        spec = KVCacheSpec(num_kv_heads=SHAPE[0], head_dim=SHAPE[1], dtype=self.dtype)
        self.cache = KVCache.allocate(
            [replace(spec, window=self.window)] * NUM_LAYERS,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            device=CPU,
        )
        for pool in (*self.cache.keys, *self.cache.values):
            pool.fill_(torch.nan)
            for row, length in enumerate(self.lens):
                slots = torch.from_numpy(self.slots(row, np.arange(length - 1)))
                pool.flatten(0, 1)[slots] = self.random(len(slots), *SHAPE)
        self.planner = DecodePlanner(
            self.cache,
            windows=(self.window,) * NUM_LAYERS,
            shares_keys=True,
            keep_keys=self.keep_keys,
        )

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.rng, dtype=self.dtype)

    def slots(self, row: int, positions: np.ndarray) -> np.ndarray:
        blocks = self.tables[row, positions // BLOCK_SIZE].astype(np.int64)
        return np.asarray(blocks * BLOCK_SIZE + positions % BLOCK_SIZE)

    def step(self, rows: np.ndarray | None = None) -> tuple[ModelAttention, torch.Tensor]:
        """Plan and compute a step of some rows; return its plan and its error."""
        rows = np.arange(len(self.lens)) if rows is None else rows
        lens = self.lens[rows]
        slots = [self.slots(row, length - 1) for row, length in zip(rows, lens, strict=True)]
        metadata = AttentionMetadata.from_arrays(
            query_start_loc=np.arange(len(rows) + 1, dtype=np.int32),
            seq_lens=lens.astype(np.int32),
            block_tables=self.tables[rows, : -(-int(lens.max()) // BLOCK_SIZE)],
            slot_mapping=np.array(slots, np.int64),
            device=CPU,
        )
        plans = (
            self.planner.plan(metadata),
            plan_model_attention(
                metadata, block_size=BLOCK_SIZE, windows=(self.window,), shares_keys=False
            ),
        )
        worst = torch.zeros((), dtype=self.dtype)
        for keys, values in zip(self.cache.keys, self.cache.values, strict=True):
            query, key = self.random(len(rows), 6, 8), self.random(len(rows), *SHAPE)
            value = self.random(len(rows), *SHAPE)
            store_keys_values(key, value, keys, values, slot_mapping=metadata.slot_mapping)
            actual, expected = (
                plan.by_window[self.window].attend(
                    query, key, value, key_cache=keys, value_cache=values, scale=self.scale
                )
                for plan in plans
            )
            worst = torch.maximum(worst, (actual - expected).abs().max())
        self.lens[rows] += 1
        return plans[0], worst


def kept_of(attention: ModelAttention) -> KeptAttention:
    kept = next(iter(attention.by_window.values()))
    assert isinstance(kept, KeptAttention)
    return kept


@pytest.mark.parametrize("seed", range(6))
def test_every_step_equals_one_that_gathers_anew(seed: int) -> None:
    """Rows of very different lengths, over more steps than are kept at once."""
    lens = np.random.default_rng(seed).integers(20, 70, 5)
    decoding = Decoding(lens, seed=seed)
    first = kept_of(decoding.step()[0])
    for step in range(1, NUM_KEPT_STEPS + 5):
        attention, error = decoding.step()
        assert (kept_of(attention) is first) == (step <= NUM_KEPT_STEPS)
        assert float(error) < 1e-12


def test_a_step_of_other_rows_is_gathered_anew() -> None:
    decoding = Decoding(np.array([30, 31, 45, 22]))
    first, _ = decoding.step()
    second, error = decoding.step(np.array([0, 2, 3]))
    assert kept_of(second) is not kept_of(first)
    assert float(error) < 1e-12
    third, error = decoding.step(np.array([1, 2, 3]))  # as many rows, one of them another
    assert kept_of(third) is not kept_of(second)
    assert float(error) < 1e-12


def test_a_row_whose_blocks_were_exchanged_is_gathered_anew() -> None:
    decoding = Decoding(np.array([30, 31]))
    first, _ = decoding.step()
    unused = decoding.tables[1, 39]
    for pool in (*decoding.cache.keys, *decoding.cache.values):
        pool[unused] = pool[decoding.tables[1, 7]] * 2
    decoding.tables[1, 7] = unused
    second, error = decoding.step()
    assert kept_of(second) is not kept_of(first)
    assert float(error) < 1e-12


def test_nothing_is_kept_across_prompts() -> None:
    """A block that changed hands holds something else, although the tables look the same."""
    decoding = Decoding(np.array([30, 31]))
    decoding.step()
    for pool in (*decoding.cache.keys, *decoding.cache.values):
        pool.mul_(2)
    assert float(decoding.step()[1]) > 0.01, "the case proves less"
    decoding.planner.forget()
    assert float(decoding.step()[1]) < 1e-12


def test_a_broken_row_stays_alone() -> None:
    decoding = Decoding(np.array([30, 41, 40]))
    first_private = int(decoding.lens.min() - 1) // BLOCK_SIZE
    for pool in (*decoding.cache.keys, *decoding.cache.values):
        pool[decoding.tables[1, first_private]] = torch.nan
    for _ in range(3):
        attention, _ = decoding.step()
    rows = kept_of(attention).attend(
        decoding.random(3, 6, 8),
        decoding.random(3, *SHAPE),
        decoding.random(3, *SHAPE),
        key_cache=decoding.cache.keys[0],
        value_cache=decoding.cache.values[0],
        scale=0.3,
    )
    assert rows.isfinite().all(dim=2).all(dim=1).tolist() == [True, False, True]


def test_windows_and_large_rows_are_gathered_in_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    windowed = Decoding(np.array([30, 31]), window=40)
    attention, _ = windowed.step()
    assert not isinstance(attention.by_window[40], KeptAttention)
    assert float(windowed.step()[1]) < 1e-12
    monkeypatch.setattr(kept_keys, "MAX_KEPT_BYTES", 1000)
    large = Decoding(np.array([30, 31]))
    attention, _ = large.step()
    assert not isinstance(attention.by_window[None], KeptAttention)
    assert float(large.step()[1]) < 1e-12
