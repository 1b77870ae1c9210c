"""Runs a job in front of a person: signals, progress, the lines at the end.

Everything it prints goes to standard error; standard output is for answers.
"""

import logging
import os
import sys
import warnings
from typing import TextIO

from nanobatch.dashboard.progress import make_progress
from nanobatch.dashboard.report import render_summary
from nanobatch.errors import Stopped
from nanobatch.job.run import JobResult, run_job
from nanobatch.job.stop_signal import StopSignal, exit_code_of
from nanobatch.job_config import JobConfig

SPIN_COUNT = "1000"
"""Rounds that torch's CPU threads spin at a barrier before they sleep. The default spins for
milliseconds: on a machine with other work (a laptop, a shared node) every matrix product then
waits for a thread that cannot run. Measured with two cores and a load of 3: 9.3 s instead of 43.5 s
for 24 tokens of the 72 sample rows."""


def run_with_progress(config: JobConfig, *, debug: bool = False) -> int:
    """Run a job and return the exit code of contract.md, promise 19.

    A negative code means that the process should die of that signal.
    """
    quieten_libraries(debug=debug)
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read when torch is first imported
    stream = sys.stderr
    shares_terminal = config.writes_to_stdout and sys.stdout.isatty()
    stop = StopSignal(stop_after_s=config.stop_after_s)
    with (
        stop.installed(),
        make_progress(
            stream,
            show_progress=config.show_progress,
            is_terminal=stream.isatty() and not shares_terminal,
            interval_s=config.log_interval_s,
        ) as progress,
    ):
        try:
            result = run_job(config, on_stats=progress.update, stop=stop)
        except Stopped as stopped:  # before anything was begun or after all was done
            assert stop.received is not None, "only a signal stops a run"
            stream.write(f"{stopped.message}: run the same line again to continue\n")
            return exit_code_of(stop.received)
        progress.close(result.stats)
    _print_ending(result, config, stop, stream)
    return result.exit_code


def _print_ending(result: JobResult, config: JobConfig, stop: StopSignal, stream: TextIO) -> None:
    if result.stats is None:
        stream.write(f"nothing to do: {config.output} is complete ({result.num_rows:,} rows")
        if result.num_rows_error:
            stream.write(f", {result.num_rows_error:,} of them errors")
            stream.write("; --retry-errors runs those again")
        stream.write(")\n")
        return
    output = None if config.writes_to_stdout else config.output
    if result.stopped_by is None or stop.reason is None:
        stream.write(render_summary(result.stats, output))
        return
    stream.write(render_summary(result.stats))
    if output is not None:
        stream.write(
            f"stopped by {stop.reason.text}: run the same line again to continue "
            f"(finished rows are in {config.journal_dir})\n"
        )


def quieten_libraries(*, debug: bool) -> None:
    """Leave standard error to nanobatch: libraries speak only of errors."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO, format="%(message)s", force=True
    )
    warnings.filterwarnings("ignore", module=r"(transformers|torch|huggingface_hub)\b.*")
    for name in ("transformers", "huggingface_hub", "gguf", "httpx", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
