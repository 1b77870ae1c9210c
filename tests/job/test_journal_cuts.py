"""A journal cut at any byte, or damaged at any byte: the same line ends with the same output.

What a run does once it has opened the journal follows from the bytes in the journal's folder and
from the line, and from nothing else. So there are two steps:

1. Cut (or damaged) at every byte, the folder is opened by the code that every run opens it with.
   Its segments are then byte for byte those of the whole records (or an error names the place),
   so that no run can tell two cuts apart between which no record ends.
2. From each of these states, and from cuts drawn at random besides, the whole line runs to its
   end, in process on the null model: the same bytes but for `cached_tokens`, and no finished
   row is run again. `NANOBATCH_ALL_CUTS=1` in the environment does so from every byte.
"""

import dataclasses
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nanobatch.errors import JournalError
from nanobatch.io.journal_index import REPAIR_HINT
from nanobatch.io.journal_segment import segment_path
from nanobatch.job.earlier_runs import open_earlier_runs
from nanobatch.job.plan import make_plan
from nanobatch.job.stop_signal import StopSignal
from nanobatch.job_config import JobConfig
from tests.job.null_jobs import StopAfter, run_null
from tests.job.recorded_job import (
    ROWS,
    PlacedRecord,
    RecordedJob,
    cut_segments,
    journal_segments,
    num_finished,
    record_job,
)

NUM_SAMPLED_CUTS = 60
NUM_PAIRS = 60
ALL_CUTS = bool(os.environ.get("NANOBATCH_ALL_CUTS"))
"""Whether the whole line runs from a cut at every byte, which takes a minute and more."""


@pytest.fixture(scope="module")
def job() -> Iterator[RecordedJob]:
    in_memory = Path("/dev/shm")  # thousands of journals, each fsynced
    parent = in_memory if os.access(in_memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="nanobatch-") as folder:
        yield record_job(Path(folder))


def require_output(job: RecordedJob, config: JobConfig, *, num_resumed: int | None) -> None:
    """Run a line to its end and check what it wrote and how many rows it did not run."""
    result = run_null(config)
    assert job.written() == job.output
    assert result.exit_code == 3
    assert result.stats is not None
    assert num_resumed in (None, result.stats.num_rows_resumed)


def repairing(config: JobConfig) -> JobConfig:
    flags = dataclasses.replace(config.start_over, repair_journal=True)
    return dataclasses.replace(config, start_over=flags)


def flip(segments: Sequence[bytes], place: int) -> tuple[bytes, ...]:
    """Return the segments with one byte changed, counted from the journal's first."""
    left = []
    for segment in segments:
        content = bytearray(segment)
        if 0 <= place < len(segment):
            content[place] ^= 0x80
        left.append(bytes(content))
        place -= len(segment)
    return tuple(left)


def without(job: RecordedJob, lost: PlacedRecord | None) -> tuple[bytes, ...]:
    """Return the segments without one record."""
    segments = list(job.segments)
    if lost is not None:
        content = segments[lost.segment - 1]
        segments[lost.segment - 1] = content[: lost.start] + content[lost.end :]
    return tuple(segments)


def record_at(job: RecordedJob, place: int) -> PlacedRecord | None:
    """Return the record that has a byte, None for one of a segment's header."""
    record = next(record for record in job.records if job.end(record) > place)
    is_in_it = place >= job.end(record) - (record.end - record.start)
    return record if is_in_it else None


def test_the_recorded_journal_has_one_of_everything(job: RecordedJob) -> None:
    content = b"".join(job.segments)
    assert len(job.segments) == 3
    assert b'],[1,"' in content  # a second sample
    assert content.count(b"prompt_too_long") == 1  # an error that became an answer
    assert content.count(b"empty_prompt") == 2  # an error that came again
    assert "heiß".encode() in content
    assert b"\xed\xb3\xbf" in content  # a lone surrogate, U+DCFF


def test_cut_at_every_byte_the_journal_opens_as_its_whole_records(job: RecordedJob) -> None:
    plan = make_plan(job.config)
    for cut in range(job.num_bytes + 1):
        job.restore(job.cut(cut))
        open_earlier_runs(plan, None).index.close()
        whole = job.whole_records(cut)
        expected = job.cut(job.end(whole[-1])) if whole else ()
        assert journal_segments(job.config.journal_dir) == expected, f"cut at byte {cut}"


@pytest.mark.slow
def test_cut_anywhere_the_same_line_ends_with_the_same_output(job: RecordedJob) -> None:
    rng = random.Random(0)
    ends = [0, *map(job.end, job.records)]
    cuts = {end + step for end in ends for step in (-1, 0, 1)} & set(range(job.num_bytes + 1))
    cuts |= {rng.randrange(job.num_bytes) for _ in range(NUM_SAMPLED_CUTS)}
    for cut in range(job.num_bytes + 1) if ALL_CUTS else sorted(cuts):
        job.restore(job.cut(cut))
        require_output(job, job.config, num_resumed=num_finished(job.whole_records(cut)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_PAIRS))
def test_cut_resumed_and_cut_again_the_same_line_ends_with_the_same_output(
    job: RecordedJob, seed: int
) -> None:
    rng = random.Random(seed)
    job.restore(job.cut(rng.randrange(job.num_bytes)))
    stop = StopSignal()
    run_null(job.config, stop=stop, on_stats=StopAfter(rng.randrange(len(ROWS)), stop))
    segments = journal_segments(job.config.journal_dir)
    job.restore(cut_segments(segments, rng.randrange(sum(map(len, segments)) + 1)))
    require_output(job, job.config, num_resumed=None)


@pytest.mark.slow
def test_a_byte_flipped_anywhere_in_the_middle_is_named_by_its_record(job: RecordedJob) -> None:
    plan = make_plan(job.config)
    for place in range(job.end(job.records[-2])):
        job.restore(flip(job.segments, place))
        with pytest.raises(JournalError) as refused:
            open_earlier_runs(plan, None)
        assert refused.value.hint == REPAIR_HINT
        assert refused.value.message.startswith(damage_text(job, place)), f"byte {place}"


@pytest.mark.slow
def test_repair_costs_the_record_of_a_flipped_byte_and_no_other(job: RecordedJob) -> None:
    plan = make_plan(repairing(job.config))
    for place in range(0, job.end(job.records[-2]), 3):
        job.restore(flip(job.segments, place))
        open_earlier_runs(plan, None).index.close()
        expected = without(job, record_at(job, place))
        assert journal_segments(job.config.journal_dir) == expected, f"byte {place}"


def test_a_byte_flipped_in_the_last_record_costs_that_record_without_a_word(
    job: RecordedJob,
) -> None:
    plan = make_plan(job.config)
    for place in range(job.end(job.records[-2]), job.num_bytes):
        job.restore(flip(job.segments, place))
        open_earlier_runs(plan, None).index.close()
        expected = without(job, job.records[-1])
        assert journal_segments(job.config.journal_dir) == expected, f"byte {place}"


def damage_text(job: RecordedJob, place: int) -> str:
    """Return how the error about a flipped byte begins."""
    number = next(n for n in range(1, 4) if place < sum(map(len, job.segments[:n])))
    lost = record_at(job, place)
    start = 0 if lost is None else lost.start
    path = segment_path(job.config.journal_dir, number)
    return f"{path} is damaged at byte {start:,} "


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_journal_that_was_repaired_ends_with_the_same_output(job: RecordedJob, seed: int) -> None:
    rng = random.Random(seed)
    place = rng.randrange(job.end(job.records[-2]))
    job.restore(flip(job.segments, place))
    with pytest.raises(JournalError, match="is damaged at byte"):
        run_null(job.config)
    lost = record_at(job, place)
    kept = [record for record in job.records if record is not lost]
    require_output(job, repairing(job.config), num_resumed=num_finished(kept))
