"""Memory of a large job does not grow with its rows (promise 5).

NANOBATCH_TEST_ROWS=1000000 runs it at full size; the bound is the same formula.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job.million_rows import WARM_UP_ROWS

NUM_ROWS = int(os.environ.get("NANOBATCH_TEST_ROWS", "110000"))
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_memory_beyond_the_window_grows_by_at_most_16_bytes_a_row(tmp_path: Path) -> None:
    paths = [str(ROOT / "src"), str(ROOT)]
    completed = subprocess.run(
        [sys.executable, "-m", "tests.job.million_rows", str(NUM_ROWS), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        cwd=ROOT,
        check=True,
    )
    report = json.loads(completed.stdout)
    assert report["num_rows"] == NUM_ROWS > WARM_UP_ROWS
    assert report["exit_code"] == 0
    assert not report["torch_loaded"]
    growth = report["peak_bytes"] - report["warm_peak_bytes"]
    assert growth <= 16 * (NUM_ROWS - WARM_UP_ROWS) + 32 * 2**20
    assert report["hit_rate"] > 0.2
