"""SIGTERM while the main thread is in C and does not come back: 75 within ten seconds, anywhere."""

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kill.conftest import MakeJob
from tests.kill.places import HANGS, Place, Treatment

pytestmark = pytest.mark.slow

STOP_LIMIT_S = 10.0
PLACES = tuple(place for place in Place if place is not Place.END)


def test_sigterm_ends_a_run_that_hangs_in_c_and_the_same_line_finishes_it(
    make_job: MakeJob, tmp_path: Path
) -> None:
    left_alone = make_job("out.parquet", tmp_path / "left-alone")
    left_alone.finish()
    jobs = [make_job("out.parquet", tmp_path / place) for place in PLACES]
    with ExitStack() as stack:
        started = [
            stack.enter_context(job.started(hang_at=place))
            for job, place in zip(jobs, PLACES, strict=True)
        ]
        for _, marks in started:
            marks.wait_for(HANGS)
        sent_s = time.monotonic()
        for run, _ in started:
            run.send(signal.SIGTERM)
        codes = [run.code(timeout_s=STOP_LIMIT_S) for run, _ in started]
        assert time.monotonic() - sent_s < STOP_LIMIT_S
    assert codes == [75] * len(PLACES)
    for job in jobs:
        job.finish()
        assert job.rows() == left_alone.rows()


def test_sigterm_ends_a_run_that_waits_for_a_silent_pipe(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job("piped.jsonl", tmp_path / "job")
    pipe = tmp_path / "silent"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    treatment = Treatment(output=str(job.output))
    run = job.server.start(job.line, treatment, log=job.log, stdin=pipe)
    time.sleep(0.5)
    sent_s = time.monotonic()
    run.send(signal.SIGTERM)
    assert run.code(timeout_s=STOP_LIMIT_S) == 75
    assert time.monotonic() - sent_s < STOP_LIMIT_S / 2  # nothing had to end it
    os.close(writer)
    job.finish()
