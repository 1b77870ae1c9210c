"""Reading and writing cost at most twice what a bare loop does (docs/measurements.md)."""

from pathlib import Path
from statistics import median

import pytest

from tests.job.file_path_bench import measure

NUM_ROWS = 30_000
NUM_RUNS = 3
MAX_RATIO = 2.0


@pytest.mark.slow
def test_reading_and_writing_cost_at_most_twice_a_bare_loop(tmp_path: Path) -> None:
    ratios: dict[str, list[float]] = {}
    for run in range(NUM_RUNS):
        folder = tmp_path / str(run)
        folder.mkdir()
        for pair, figures in measure(NUM_ROWS, folder).items():
            ratios.setdefault(pair, []).append(figures["ratio"])
    assert {
        pair: median(found) for pair, found in ratios.items() if median(found) > MAX_RATIO
    } == {}
