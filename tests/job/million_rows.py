"""Runs a large job on the null model in a process without torch and prints its memory as JSON.

usage: python -m tests.job.million_rows NUM_ROWS FOLDER [SUFFIX]
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

WARM_UP_ROWS = 100_000
SYSTEM = "Good or bad? "


def peak_rss_bytes() -> int:
    """Return the largest resident size that this process ever had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def write_input(path: Path, num_rows: int) -> None:
    """Write chat rows that share a system prompt, each with an id and a column that passes."""
    with path.open("w") as file:
        for index in range(num_rows):
            turns = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"{index}: broke after {index % 97} days."},
            ]
            row = {"id": f"review-{index}", "messages": turns, "stars": index % 5}
            file.write(json.dumps(row) + "\n")


def main() -> None:
    """Run the job and print what it took."""
    num_rows, folder = int(sys.argv[1]), Path(sys.argv[2])
    suffix = sys.argv[3] if len(sys.argv) > 3 else ".parquet"
    # Libraries that would use torch if it were installed now find that it is not.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from nanobatch.job.stats import JobStats, Phase
    from tests.job.null_jobs import null_config, run_null
    from tests.null_model import write_null_model

    source = folder / "in.jsonl"
    write_input(source, num_rows)
    warm_peaks: list[int] = []
    running_peaks = [0]

    def on_stats(stats: JobStats) -> None:
        if not warm_peaks and stats.num_rows_done >= WARM_UP_ROWS:
            warm_peaks.append(peak_rss_bytes())
        if stats.phase is Phase.RUNNING:
            running_peaks[0] = peak_rss_bytes()

    config = null_config(
        write_null_model(folder / "model"),
        source,
        folder / f"out{suffix}",
        sampling={"max_tokens": 8, "temperature": 0.0},
    )
    started = time.perf_counter()
    result = run_null(config, on_stats=on_stats)
    seconds = time.perf_counter() - started
    assert result.stats is not None
    report: dict[str, Any] = {
        "num_rows": result.num_rows,
        "exit_code": result.exit_code,
        "warm_peak_bytes": warm_peaks[0] if warm_peaks else None,
        "running_peak_bytes": running_peaks[0],
        "peak_bytes": peak_rss_bytes(),
        "rows_per_s": round(num_rows / seconds, 1),
        "phase_seconds": dict(result.stats.phase_seconds),
        "torch_loaded": sys.modules["torch"] is not None,
        "num_prefill_tokens": result.stats.num_prefill_tokens,
        "hit_rate": result.stats.prefix_hit_rate,
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
