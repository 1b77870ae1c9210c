"""Plays a short run to its standard error: run by tests as a process of its own.

python -m tests.dashboard.player SCENE [SECONDS]
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from tqdm import tqdm

from nanobatch.dashboard.progress import make_progress
from nanobatch.dashboard.protocol import Progress
from nanobatch.dashboard.report import render_summary
from nanobatch.job.stats import JobStats, Phase
from tests.dashboard.snapshots import FINISHED, RUNNING

STEP_S = 0.005


def play(progress: Progress, seconds: float) -> JobStats:
    """Give a new snapshot every few milliseconds, as a job's loop does."""
    started = time.monotonic()
    while (fraction := (time.monotonic() - started) / seconds) < 1.0:
        num_done = round(fraction * 10_000)
        progress.update(replace(RUNNING, num_rows_done=num_done, input_fraction=fraction))
        time.sleep(STEP_S)
    return FINISHED


def play_with_log_lines(progress: Progress, seconds: float) -> JobStats:
    """Log and print while the dashboard is live, from before and after it was started."""
    logging.warning("first line, [red]not markup[/red]")
    play(progress, seconds / 2)
    logging.warning("second line")
    sys.stderr.write("third line\n")
    return play(progress, seconds / 2)


def play_loading(progress: Progress, seconds: float) -> JobStats:
    """Sit in a long call that shows a tqdm bar on standard error, without any snapshot."""
    progress.update(replace(RUNNING, phase=Phase.LOADING, input_fraction=0.0, elapsed_s=0.0))
    for _ in tqdm(range(10), desc="loading weights", file=sys.stderr):
        time.sleep(seconds / 10)
    return FINISHED


def play_stuck(progress: Progress, seconds: float) -> JobStats:
    """Give one snapshot, then none."""
    progress.update(replace(RUNNING, phase=Phase.LOADING, elapsed_s=0.0, phase_seconds={}))
    time.sleep(seconds)
    return FINISHED


def play_killed(progress: Progress, seconds: float) -> JobStats:
    """Die of a signal that cannot be handled."""
    play(progress, seconds)
    os.kill(os.getpid(), signal.SIGKILL)
    return FINISHED


SCENES: dict[str, Callable[[Progress, float], JobStats]] = {
    "run": play,
    "log": play_with_log_lines,
    "loading": play_loading,
    "stuck": play_stuck,
    "killed": play_killed,
}


def main(scene: str, seconds: float, interval_s: float) -> None:
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    progress = make_progress(
        sys.stderr,
        show_progress=True,
        is_terminal=sys.stderr.isatty(),
        interval_s=interval_s,
    )
    with progress:
        final_stats = SCENES[scene](progress, seconds)
        progress.close(final_stats)
    sys.stderr.write(render_summary(final_stats, "answers.parquet"))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
