"""Reading and writing cost at most twice what a bare loop does (docs/measurements.md).

Alone on a machine the ratios are 1.4 to 1.7. A test shares its machine with other tests, which cost
the larger working set more: up to a fifth was seen, and the bound allows a quarter.
"""

import math
from pathlib import Path

import pytest

from tests.job.file_path_bench import measure

NUM_ROWS = 30_000
MAX_ROUNDS = 8
MAX_RATIO = 2.5


@pytest.mark.slow
def test_reading_and_writing_cost_about_twice_a_bare_loop_at_most(tmp_path: Path) -> None:
    """Other work on a machine only ever adds time, so that the least of a few rounds counts."""
    least: dict[str, tuple[float, float]] = {}
    for number in range(MAX_ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        for pair, figures in measure(NUM_ROWS, folder).items():
            ours_us, bare_us = least.get(pair, (math.inf, math.inf))
            least[pair] = min(ours_us, figures["ours_us"]), min(bare_us, figures["bare_us"])
        ratios = {pair: ours_us / bare_us for pair, (ours_us, bare_us) in least.items()}
        if number > 0 and max(ratios.values()) <= MAX_RATIO:
            break
    assert {pair: ratio for pair, ratio in ratios.items() if ratio > MAX_RATIO} == {}
