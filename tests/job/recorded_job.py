"""A job whose journal holds one of everything, to be cut, damaged and resumed.

Three runs wrote it: one that was stopped, one that finished what was left, one that ran the error
rows again (`--retry-errors`). It has several samples a row, error rows of which some came again,
and any Unicode: lone surrogates too, as a record that names an input file has them.
"""

import dataclasses
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nanobatch.io.journal_record import RecordFlags
from nanobatch.io.journal_segment import SegmentScan, segment_numbers, segment_path
from nanobatch.job.stop_signal import StopSignal
from nanobatch.job_config import JobConfig, StartOver
from tests.job.null_jobs import StopAfter, null_config, run_null, write_lines
from tests.null_model import write_null_model

CONTEXT_TOKENS = 48
INPUT_NAME = os.fsdecode(b"in-\xff-\xc3\xa9.jsonl")
ROWS: list[dict[str, Any]] = [
    {"id": "ä\u2028🎉", "prompt": "the answer of é is", "score": 1.5},
    {"id": "two", "prompt": "two answers", "n": 2},
    {"id": "long", "prompt": "word " * CONTEXT_TOKENS},
    {"id": "empty", "prompt": "", "note": "kept"},
    {"id": "chat", "messages": [{"role": "user", "content": "\ud800?"}], "n": 2},
    {"id": "bad", "prompt": "x", "temperature": "heiß\u2028🎉"},
    {"custom_id": "used", "body": {"prompt": "the first of two"}},
    {"custom_id": "used", "body": {"prompt": "the second"}},
]
"""The third is too long; the fourth, the sixth and the last have errors that come again."""

_CACHED_TOKENS = re.compile(rb'"cached_tokens": ?\d+')


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRecord:
    """A record of the journal.

    Attributes:
        segment: Number of its segment.
        start: Offset of its first byte in the segment.
        end: Offset after its last byte in the segment.
        row_index: The row that it answers.
        stays: Whether the line takes it for finished: no error that it is to run again.
    """

    segment: int
    start: int
    end: int
    row_index: int
    stays: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """A job, its journal after the last run, and what every resume must end with.

    Attributes:
        config: The line that is run again; its output is not there.
        manifest: `manifest.json` after the last run.
        segments: Content of each segment, in order.
        records: What the segments hold, in order.
        output: The final file's bytes without numbers of cached tokens.
    """

    config: JobConfig
    manifest: bytes
    segments: tuple[bytes, ...]
    records: tuple[PlacedRecord, ...]
    output: bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the journal."""
        return sum(map(len, self.segments))

    def cut(self, num_bytes: int) -> tuple[bytes, ...]:
        """Return the segments of a journal of which so many bytes are there."""
        return cut_segments(self.segments, num_bytes)

    def end(self, record: PlacedRecord) -> int:
        """Return where a record ends, counted from the journal's first byte."""
        return sum(map(len, self.segments[: record.segment - 1])) + record.end

    def whole_records(self, num_bytes: int) -> tuple[PlacedRecord, ...]:
        """Return the records that are whole in a journal of so many bytes."""
        return tuple(record for record in self.records if self.end(record) <= num_bytes)

    def restore(self, segments: Sequence[bytes]) -> None:
        """Put a journal with these segments beside an output that is not there."""
        folder = self.config.journal_dir
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "manifest.json").write_bytes(self.manifest)
        for number, segment in enumerate(segments, 1):
            segment_path(folder, number).write_bytes(segment)
        Path(self.config.output).unlink(missing_ok=True)
        self.config.summary_path.unlink(missing_ok=True)

    def written(self) -> bytes:
        """Return the output as `output` has it."""
        return _CACHED_TOKENS.sub(b"", Path(self.config.output).read_bytes())


def num_finished(records: Iterable[PlacedRecord]) -> int:
    """Return how many rows need not run again when these records are there."""
    return sum({record.row_index: record.stays for record in records}.values())


def cut_segments(segments: Sequence[bytes], num_bytes: int) -> tuple[bytes, ...]:
    """Return the first bytes of a journal: one segment is cut, later ones are not there."""
    left = []
    for segment in segments:
        left.append(segment[:num_bytes])
        num_bytes -= len(segment)
        if num_bytes <= 0:
            break
    return tuple(left)


def journal_segments(folder: Path) -> tuple[bytes, ...]:
    """Return the content of each segment of a journal, in order."""
    return tuple(segment_path(folder, n).read_bytes() for n in segment_numbers(folder))


def record_job(folder: Path) -> RecordedJob:
    """Run the job three times and keep what the last run left."""
    model = write_null_model(folder / "model", context=CONTEXT_TOKENS)
    source = write_lines(folder / INPUT_NAME, ROWS)
    first = null_config(
        model,
        source,
        folder / "out.jsonl",
        sampling={"temperature": 0.0, "max_tokens": 4},
        engine={"max_num_seqs": 2},
        window_rows=3,
        keep_journal=True,
    )
    truncating = dataclasses.replace(first.engine, long_prompts="truncate-left")
    line = dataclasses.replace(first, engine=truncating, start_over=StartOver(retry_errors=True))
    stop = StopSignal()
    assert run_null(first, stop=stop, on_stats=StopAfter(4, stop)).exit_code == 75
    assert run_null(first).exit_code == 3
    assert run_null(line).exit_code == 3
    job = RecordedJob(
        config=line,
        manifest=(line.journal_dir / "manifest.json").read_bytes(),
        segments=journal_segments(line.journal_dir),
        records=tuple(_placed_records(line.journal_dir)),
        output=b"",
    )
    return dataclasses.replace(job, output=_uninterrupted_output(job))


def _placed_records(folder: Path) -> Iterator[PlacedRecord]:
    numbers = segment_numbers(folder)
    for number in numbers:
        for offset, header, record in SegmentScan(segment_path(folder, number)):
            yield PlacedRecord(
                segment=number,
                start=offset,
                end=offset + len(record),
                row_index=header.row_index,
                stays=number == numbers[-1] or not header.flags & RecordFlags.ERROR,
            )


def _uninterrupted_output(job: RecordedJob) -> bytes:
    """Return what one run of the line writes where nothing was before."""
    output = Path(job.config.output).with_name("whole.jsonl")
    alone = dataclasses.replace(job.config, output=str(output), start_over=StartOver())
    assert run_null(alone).exit_code == 3
    return dataclasses.replace(job, config=alone).written()
