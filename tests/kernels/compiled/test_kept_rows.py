"""Steps over kept rows equal steps that gather anew, whatever rows share and how long they are."""

import numpy as np
import pytest
import torch

from nanobatch.kernels.compiled.kept_rows import KeptRowsAttention, keeper_of
from nanobatch.kernels.kept_keys import NUM_KEPT_STEPS
from nanobatch.kernels.torch_kernels import TorchKernels
from tests.kernels.compiled.sizes import layer_sizes, plain_kernels
from tests.kernels.test_kept_keys import Decoding

KERNELS = plain_kernels(layer_sizes(dtype=torch.float32))
SCALE = 8**-0.5


def decoding(lens: list[int], *, seed: int = 0) -> Decoding:
    return Decoding(
        np.array(lens),
        seed=seed,
        dtype=torch.float32,
        scale=SCALE,
        keep_keys=keeper_of(KERNELS),
    )


@pytest.mark.parametrize(
    "lens",
    [[30, 31, 45, 22], [1, 2, 3], [40], [5, 100, 120, 33, 34], [64, 64, 64], [32, 33, 31, 96]],
)
def test_every_step_equals_one_that_gathers_anew(lens: list[int]) -> None:
    rows = decoding(lens, seed=len(lens))
    first = None
    for step in range(NUM_KEPT_STEPS + 5):
        attention, error = rows.step()
        kept = attention.by_window[None]
        assert isinstance(kept, KeptRowsAttention)
        assert (kept is first) == (0 < step <= NUM_KEPT_STEPS)
        first = kept if first is None else first
        assert float(error) < 1e-5


def test_rows_share_what_they_begin_with() -> None:
    rows = decoding([90, 91, 100] * 6)
    rows.step()
    assert rows.planner.num_saved_keys > 1000, "the case proves less"
    assert float(rows.step()[1]) < 1e-5


def test_a_broken_row_stays_alone() -> None:
    rows = decoding([30, 41, 40])
    first_private = int(rows.lens.min() - 1) // rows.cache.block_size
    for pool in (*rows.cache.keys, *rows.cache.values):
        pool[rows.tables[1, first_private]] = torch.nan
    for _ in range(3):
        attention, _ = rows.step()
    attended = attention.by_window[None].attend(
        rows.random(3, 6, 8),
        rows.random(3, 2, 8),
        rows.random(3, 2, 8),
        key_cache=rows.cache.keys[0],
        value_cache=rows.cache.values[0],
        scale=SCALE,
    )
    assert attended.isfinite().all(dim=2).all(dim=1).tolist() == [True, False, True]


def test_other_kernels_keep_keys_as_they_are() -> None:
    assert keeper_of(TorchKernels()) is None
    assert keeper_of(None) is None
