"""A real process, killed with SIGKILL again and again, loses no row and does none twice."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from tests.job.null_jobs import read_rows, without_cached_tokens, write_lines

NUM_ROWS = 240
MAX_NUM_SEQS = 8
TIMEOUT_S = 240
FINISHED = re.compile(rb"^finished row (\d+)$", re.MULTILINE)
ROOT = Path(__file__).parents[2]


def command(model: Path, source: Path, output: Path) -> list[str]:
    """Return the line that starts, and continues, the job."""
    return [
        *(sys.executable, "-m", "nanobatch", "run", str(source), "-o", str(output)),
        *("--model", str(model), "--max-tokens", "24", "--max-num-seqs", str(MAX_NUM_SEQS)),
        *("--device", "cpu", "--debug", "--no-progress"),
    ]


def environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def kill_when_finished(line: list[str], log: Path, num_rows: int) -> None:
    """Start the job and send SIGKILL once it has finished so many rows in this run."""
    with log.open("wb") as stderr:
        process = subprocess.Popen(line, stderr=stderr, env=environment())
    deadline = time.monotonic() + TIMEOUT_S
    while len(finished_rows(log)) < num_rows:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def finished_rows(log: Path) -> list[int]:
    return [int(number) for number in FINISHED.findall(log.read_bytes())]


@pytest.mark.slow
def test_a_run_killed_three_times_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", "qwen3")
    source = write_lines(
        tmp_path / "in.jsonl",
        [{"id": index, "prompt": f"question {index}: the answer is"} for index in range(NUM_ROWS)],
    )
    whole, parts = tmp_path / "whole.parquet", tmp_path / "parts.parquet"
    subprocess.run(command(model, source, whole), env=environment(), check=True, timeout=TIMEOUT_S)
    line = command(model, source, parts)
    logs = [tmp_path / f"run-{number}.log" for number in range(4)]
    num_before = 0
    for share, log in zip((0.1, 0.5, 0.9), logs, strict=False):
        target = int(NUM_ROWS * share)
        kill_when_finished(line, log, target - num_before)
        num_before = target
        assert not parts.exists()
    with logs[-1].open("wb") as stderr:
        subprocess.run(line, stderr=stderr, env=environment(), check=True, timeout=TIMEOUT_S)
    assert without_cached_tokens(read_rows(parts)) == without_cached_tokens(read_rows(whole))
    generated = [row for log in logs for row in finished_rows(log)]
    assert set(generated) == set(range(NUM_ROWS))
    num_in_flight = 3 * MAX_NUM_SEQS
    assert len(generated) <= NUM_ROWS + num_in_flight
    assert not Path(f"{parts}.nanobatch").exists()
