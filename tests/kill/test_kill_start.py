"""The program itself, started as users start it, killed while it imports and begins."""

import random
import time
from pathlib import Path

import pytest

from tests.cli.program import start, wait
from tests.kill.conftest import MakeJob
from tests.kill.forked_run import wait_until_handled
from tests.kill.killed_job import STOPPED_CODE

pytestmark = pytest.mark.slow

NUM_MOMENTS = 8
START_S = 1.2
"""About what it takes until the first row runs, where nothing else does."""
SIGNALS = tuple(STOPPED_CODE)


def test_a_program_that_is_killed_while_it_starts_is_finished_by_the_same_line(
    make_job: MakeJob, tmp_path: Path
) -> None:
    rng = random.Random(0)
    expected = make_job("out.jsonl", tmp_path / "left-alone")
    expected.finish()
    for moment in range(NUM_MOMENTS):
        job = make_job("out.jsonl", tmp_path / str(moment))
        number = SIGNALS[moment % len(SIGNALS)]
        process = start(*job.line, module="tests.null_program", NULL_STEP_S="0.1")
        wait_until_handled(process.pid, number)
        time.sleep(START_S * (moment + rng.random()) / NUM_MOMENTS)
        process.send_signal(number)
        ended = wait(process)
        assert ended.code == STOPPED_CODE[number], (number, ended.err)
        job.finish()
        assert job.rows() == expected.rows()
