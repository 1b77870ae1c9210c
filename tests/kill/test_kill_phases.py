"""A real process killed in every phase, then the same line: no row is lost, none is there twice.

Eight random moments in each phase, the signals taking turns; with `NANOBATCH_ALL_KILLS=1` in the
environment every signal at each moment. Moments are drawn from the time that the phase takes in a
run that is left alone, and each hits its phase. The processes are forked from one that has
imported the program, which is why hundreds are affordable; `test_kill_start` kills those that
import it themselves.
"""

import dataclasses
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.kill.conftest import MakeJob
from tests.kill.forked_run import Mark
from tests.kill.killed_job import (
    ALL_KILLS,
    LOAD_S,
    MAX_NUM_SEQS,
    NUM_ROWS,
    RENAME_S,
    STEP_S,
    STOPPED_CODE,
    KilledJob,
    two_at_once,
)
from tests.kill.places import Place

pytestmark = pytest.mark.slow

NUM_MOMENTS = 8
MAX_ATTEMPTS = 5
"""How often a kill is brought forward that came when its phase was over."""
SIGNALS = tuple(STOPPED_CODE)
PLACES = tuple(place for place in Place if place is not Place.END)
OUTPUTS = ("out.parquet", "out/", "piped.jsonl")
STOP_LIMIT_S = 10.0
TIMES = {"load_s": LOAD_S, "step_s": STEP_S, "rename_s": RENAME_S}


@pytest.fixture(scope="module", params=OUTPUTS)
def left_alone(
    make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> KilledJob:
    """A job that nobody killed."""
    return make_job(request.param, tmp_path_factory.mktemp("left-alone") / "job")


@pytest.fixture(scope="module")
def marks(left_alone: KilledJob) -> list[Mark]:
    """Where that job was when."""
    with left_alone.started(**TIMES) as (run, marks):
        assert run.code() == 0
        return marks.read()


@pytest.fixture(scope="module")
def expected(left_alone: KilledJob, marks: list[Mark]) -> list[dict[str, Any]]:
    """What that job wrote."""
    assert marks[-1].what == Place.END
    rows = left_alone.rows()
    assert [row["row_index"] for row in rows] == list(range(NUM_ROWS))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A signal at a moment.

    Attributes:
        number: The signal.
        place: The phase in which it is sent.
        occurrence: How often the run has come to that place by then, from 1.
        delay_s: Time from there on.
    """

    number: signal.Signals
    place: Place
    occurrence: int
    delay_s: float


def planned_kills(place: Place, marks: list[Mark], num_moments: int) -> Iterator[Kill]:
    """Yield the kills of a phase: the moments are spread over it, each drawn at random."""
    rng = random.Random(place)
    spans_s = [end.time_s - begin.time_s for begin, end in pairwise(marks) if begin.what == place]
    for moment in range(num_moments):
        occurrence = rng.randrange(len(spans_s))
        share = (moment + rng.random()) / num_moments
        turn = PLACES.index(place) + moment
        for number in SIGNALS if ALL_KILLS else [SIGNALS[turn % len(SIGNALS)]]:
            yield Kill(
                number=number,
                place=place,
                occurrence=occurrence + 1,
                delay_s=share * spans_s[occurrence],
            )


@pytest.mark.parametrize("place", PLACES)
def test_a_run_that_is_killed_is_finished_by_the_same_line(
    place: Place,
    left_alone: KilledJob,
    marks: list[Mark],
    expected: list[dict[str, Any]],
    make_job: MakeJob,
    tmp_path: Path,
) -> None:
    num_moments = NUM_MOMENTS if left_alone.output_name == OUTPUTS[0] else NUM_MOMENTS // 2
    kills = list(planned_kills(place, marks, num_moments))

    def kill_and_finish(number: int) -> None:
        kill = kills[number]
        for attempt in range(MAX_ATTEMPTS):
            job = make_job(left_alone.output_name, tmp_path / f"{number}-{attempt}")
            with describe(kill):
                is_hit = kill_run(job, kill, expected)
                job.finish()
                assert job.rows() == expected
                require_each_row_once(job, kill)
            if is_hit:
                return
            kill = dataclasses.replace(kill, delay_s=kill.delay_s / 2)
        pytest.fail(f"this run was faster than the one that nobody killed: {kill}")

    two_at_once(kill_and_finish, len(kills))


def kill_run(job: KilledJob, kill: Kill, expected: list[dict[str, Any]]) -> bool:
    """Kill one run of a job; return whether it was where it was to be killed."""
    with job.started(**TIMES) as (run, pipe):
        told = pipe.wait_for(kill.place, times=kill.occurrence)
        time.sleep(kill.delay_s)
        run.send(kill.number)
        sent_s = time.monotonic()
        code = run.code(timeout_s=STOP_LIMIT_S)
        assert not run.leaves_processes()
        told += pipe.read()
    if code == 0:  # it came when all was done
        assert job.files() == job.whole_files()
    else:
        assert code == STOPPED_CODE[kill.number], job.log.read_text()[-3000:]
    assert job.rows() == expected[: len(job.rows())], "what is visible is whole"
    places = [mark.what for mark in told if mark.time_s < sent_s]
    return places[-1] == kill.place


def require_each_row_once(job: KilledJob, kill: Kill) -> None:
    """Check that no run generated what one before it had recorded."""
    generated = job.finished_rows()
    assert set(generated) == set(range(NUM_ROWS))
    num_lost = MAX_NUM_SEQS if kill.number is signal.SIGKILL else 0
    assert len(generated) <= NUM_ROWS + num_lost


@contextmanager
def describe(kill: Kill) -> Iterator[None]:
    """Let a failure say which kill it was."""
    try:
        yield
    except AssertionError as error:
        error.add_note(str(kill))
        raise
