"""A run killed before each change that it makes to the file system, one after the other.

What a run does to files is a sequence: it takes the lock, writes the manifest, begins a segment,
renames the output, writes the summary, removes the journal. SIGKILL comes before each of these
steps once; then the same line must find its way, whatever part of the sequence was done.
"""

import dataclasses
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job.null_jobs import write_lines
from tests.kill.conftest import MakeJob
from tests.kill.killed_job import ALL_KILLS, NUM_ROWS, ROWS, KilledJob, two_at_once
from tests.kill.places import Place

pytestmark = pytest.mark.slow

Prepare = Callable[[KilledJob], KilledJob]
TOO_LONG = (7, 30)
NUM_PAIRS = 8
MAX_OPERATIONS = 24
"""About how many changes a run makes at least."""


def nothing(job: KilledJob) -> KilledJob:
    return job


def stopped_twice(job: KilledJob) -> KilledJob:
    """Leave a journal of two segments."""
    for _ in range(2):
        with job.started(step_s=0.02) as (run, marks):
            marks.wait_for(Place.RUN)
            time.sleep(0.05)
            run.send(signal.SIGTERM)
            assert run.code() == 75
    assert len(list(job.journal.glob("*.journal"))) == 2
    return job


def overwriting(job: KilledJob) -> KilledJob:
    """Leave another job's output, and the journal of the one that is to replace it."""
    dataclasses.replace(job, flags=("--seed", "7")).finish()
    return stopped_twice(dataclasses.replace(job, flags=("--overwrite",)))


def restarting(job: KilledJob) -> KilledJob:
    return dataclasses.replace(stopped_twice(job), flags=("--restart",))


def restarting_with_parts(job: KilledJob) -> KilledJob:
    """Leave the first parts of a folder."""
    with job.started(step_s=0.01) as (run, _):
        while not (job.output / "part-00001.parquet").exists():
            time.sleep(0.01)
        run.send(signal.SIGTERM)
        assert run.code() == 75
    return dataclasses.replace(job, flags=("--restart",))


def repairing(job: KilledJob) -> KilledJob:
    """Leave a journal that is damaged in its middle."""
    stopped_twice(job)
    segment = job.journal / "segment-000001.journal"
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0x80
    segment.write_bytes(content)
    return dataclasses.replace(job, flags=("--repair-journal",))


def retrying(job: KilledJob) -> KilledJob:
    """Leave a finished job some of whose rows are errors, and no journal."""
    long_prompt = {"prompt": "word " * 3000}
    rows = [{**row, **long_prompt} if row["id"] in TOO_LONG else row for row in ROWS]
    source = write_lines(job.folder.with_name(f"{job.folder.name}.jsonl"), rows)
    failing = dataclasses.replace(job, source=source)
    with failing.started() as (run, _):
        assert run.code() == 3
    return dataclasses.replace(failing, flags=("--retry-errors", "--long-prompts", "truncate-left"))


SITUATIONS: list[tuple[str, Prepare]] = [
    ("out.parquet", nothing),
    ("piped.jsonl", nothing),
    ("out/", stopped_twice),
    ("out.jsonl.gz", overwriting),
    ("out.jsonl", restarting),
    ("out.jsonl", repairing),
    ("out.parquet", retrying),
    ("out/", retrying),
]
"""What a run finds when it begins."""


@pytest.mark.parametrize(("output_name", "prepare"), SITUATIONS)
def test_a_run_killed_before_any_change_of_a_file_is_finished_by_the_same_line(
    output_name: str, prepare: Prepare, make_job: MakeJob, tmp_path: Path
) -> None:
    prepared = prepare(make_job(output_name, tmp_path / "prepared"))
    left_alone = copy(prepared, tmp_path / "left-alone")
    with left_alone.started(names_operations=True) as (run, marks):
        assert run.code() == 0
        operations = [mark.what for mark in marks.read() if ":" in mark.what]
    expected = left_alone.rows()
    assert [row["row_index"] for row in expected] == list(range(NUM_ROWS))

    def kill(place: int) -> None:
        number = numbers[place]
        job = copy(prepared, tmp_path / str(number))
        with job.started(kill_at_operation=number) as (run, _):
            assert run.code() in (-signal.SIGKILL, 0), job.log.read_text()
        try:
            job.finish()
            assert job.rows() == expected
        except AssertionError as error:
            error.add_note(f"killed before number {number} of {operations}")
            raise

    numbers = chosen(operations)
    two_at_once(kill, len(numbers))


def chosen(operations: list[str]) -> list[int]:
    """Return which operations are killed: of those that come again and again the first and last."""
    if ALL_KILLS:
        return list(range(len(operations)))
    kinds = [re.sub(r"[\d-][0-9a-f]*", "0", operation) for operation in operations]
    first = {kind: number for number, kind in reversed(list(enumerate(kinds)))}
    last = {kind: number for number, kind in enumerate(kinds)}
    return sorted({*first.values(), *last.values()})


def copy(prepared: KilledJob, folder: Path) -> KilledJob:
    """Return the same job in a folder of its own."""
    shutil.copytree(prepared.folder, folder)
    return dataclasses.replace(prepared, folder=folder)


@pytest.mark.parametrize("seed", range(NUM_PAIRS))
def test_a_run_killed_twice_is_finished_by_the_same_line(
    seed: int, make_job: MakeJob, tmp_path: Path
) -> None:
    """The second time while it finds its way out of what the first kill left."""
    rng = random.Random(seed)
    output_name, prepare = rng.choice(SITUATIONS)
    job = prepare(make_job(output_name, tmp_path / "job"))
    for _ in range(2):
        with job.started(kill_at_operation=rng.randrange(MAX_OPERATIONS)) as (run, _):
            assert run.code() in (-signal.SIGKILL, 0), job.log.read_text()
    job.finish()
    assert [row["row_index"] for row in job.rows()] == list(range(NUM_ROWS))
