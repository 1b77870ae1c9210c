"""A disk that fills up under a run: fatal, by name, and the same line finishes once there is room.

Each file that a run writes meets the full disk once: on a small file system in memory where this
process may mount one, and everywhere under a limit on the size of files.
"""

import dataclasses
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import StorageError
from nanobatch.io.journal_segment import journal_bytes
from nanobatch.job.stats import JobStats, Phase
from nanobatch.job_config import JobConfig
from tests.job.full_disk import Disk, LimitedFiles, MountedDisk, mounted_disk
from tests.job.null_jobs import null_config, read_rows, run_null, without_cached_tokens, write_lines

NUM_ROWS = 40
MAX_NUM_SEQS = 4
LOCK_BYTES = 600
"""Room for the lock and not for the manifest."""
When = Callable[[JobStats], bool]
_rng = random.Random(0)
ROWS = [
    {"id": index, "prompt": f"the answer of {index} is", "note": _rng.randbytes(500).hex()}
    for index in range(NUM_ROWS)
]
"""Rows whose outputs are longer than their records, because of what passes through."""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[MountedDisk]:
    folder = tmp_path / "mounted"
    folder.mkdir()
    try:
        with mounted_disk(folder) as disk:
            yield disk
    except PermissionError as error:
        pytest.skip(f"this process may not mount a file system: {error.strerror}")


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[LimitedFiles]:
    folder = tmp_path / "limited"
    folder.mkdir()
    disk = LimitedFiles(folder)
    try:
        yield disk
    finally:
        disk.free()


@pytest.fixture(params=["mounted", "limited"])
def disk(request: pytest.FixtureRequest) -> Disk:
    found: Disk = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", ROWS)


def make_config(model: Path, source: Path, output: Path, **changes: Any) -> JobConfig:
    return null_config(model, source, output, engine={"max_num_seqs": MAX_NUM_SEQS}, **changes)


class FillWhen:
    """Fills the disk as soon as a run reports that it is time."""

    def __init__(self, disk: Disk, is_time: When, *, left_bytes: int = 0) -> None:
        self._disk = disk
        self._is_time = is_time
        self._left_bytes = left_bytes
        self.num_rows_done: int | None = None

    def __call__(self, stats: JobStats) -> None:
        if self.num_rows_done is None and self._is_time(stats):
            self.num_rows_done = stats.num_rows_done
            time.sleep(0.1)  # for the thread that writes what is finished
            self._disk.fill(left_bytes=self._left_bytes)


def rows_of(config: JobConfig) -> list[dict[str, Any]]:
    """Return the output's rows, those of every format alike."""
    output = Path(config.output)
    parts = sorted(output.glob("part-*")) if output.is_dir() else [output]
    rows = without_cached_tokens([row for part in parts for row in read_rows(part)])
    return [{key: row[key] for key in row if key != "extra"} for row in rows]


def require_fatal(config: JobConfig, disk: Disk, path: Path, fill: FillWhen) -> None:
    """Run into the full disk."""
    with pytest.raises(StorageError) as failed:
        run_null(config, on_stats=fill)
    assert failed.value.exit_code == 1
    assert failed.value.message == f"cannot write {path}: {disk.reason}"
    assert failed.value.hint == disk.hint
    assert fill.num_rows_done is not None


def require_finished(config: JobConfig, expected: Sequence[dict[str, Any]]) -> int:
    """Run the same line again; return how many rows it did not have to run."""
    result = run_null(config)
    assert result.exit_code == 0
    assert rows_of(config) == expected
    assert result.stats is not None
    return result.stats.num_rows_resumed


def is_half_done(stats: JobStats) -> bool:
    return stats.phase is Phase.RUNNING and stats.num_rows_done >= NUM_ROWS // 2


class IsWriting:
    """Whether the run has written the first row into an output, of which it then reports."""

    def __init__(self) -> None:
        self._num_reports = 0

    def __call__(self, stats: JobStats) -> bool:
        self._num_reports += stats.phase is Phase.FINALIZING
        return self._num_reports == 2


@pytest.fixture(scope="module")
def expected(null_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a run writes that has all the room in the world."""
    folder = tmp_path_factory.mktemp("roomy")
    source = write_lines(folder / "in.jsonl", ROWS)
    config = make_config(null_model, source, folder / "out.parquet")
    run_null(config)
    return rows_of(config)


def test_a_full_disk_under_the_journal_costs_only_what_was_not_written(
    null_model: Path, source: Path, disk: Disk, expected: list[dict[str, Any]]
) -> None:
    config = make_config(null_model, source, disk.folder / "out.parquet")
    fill = FillWhen(disk, is_half_done)
    require_fatal(config, disk, config.journal_dir / "segment-000001.journal", fill)
    assert not Path(config.output).exists()
    disk.free()
    num_resumed = require_finished(config, expected)
    assert NUM_ROWS // 2 <= num_resumed < NUM_ROWS


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl", "out.jsonl.gz", "out.jsonl.zst"])
def test_a_full_disk_under_the_output_costs_no_row(
    name: str, null_model: Path, source: Path, disk: Disk, expected: list[dict[str, Any]]
) -> None:
    config = make_config(null_model, source, disk.folder / name)
    require_fatal(config, disk, Path(config.output), FillWhen(disk, IsWriting()))
    left = {path.name for path in disk.folder.iterdir()} - {"filler"}
    assert left == {config.journal_dir.name}
    disk.free()
    assert require_finished(config, expected) == NUM_ROWS


def test_a_full_disk_under_a_part_costs_no_row_and_no_part(
    null_model: Path, source: Path, disk: Disk, expected: list[dict[str, Any]]
) -> None:
    output = Path(f"{disk.folder}/out")
    config = dataclasses.replace(
        make_config(null_model, source, output, rows_per_part=15), output=f"{output}/"
    )
    with pytest.raises(StorageError) as failed:
        run_null(config, on_stats=FillWhen(disk, lambda stats: stats.phase is Phase.FINALIZING))
    there = sorted(path.name for path in output.iterdir())
    assert there == [f"part-{number:05d}.parquet" for number in range(len(there))]
    next_part = output / f"part-{len(there):05d}.parquet"
    assert failed.value.message == f"cannot write {next_part}: {disk.reason}"
    disk.free()
    assert require_finished(config, expected) == NUM_ROWS
    assert (output / "_SUCCESS").exists()


def test_a_full_disk_under_the_summary_costs_no_row(
    null_model: Path, tmp_path: Path, disk: Disk
) -> None:
    """The output, of two short rows, still fits."""
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    source = write_lines(tmp_path / "in.jsonl", rows)
    config = make_config(null_model, source, disk.folder / "out.jsonl")
    fill = FillWhen(disk, IsWriting(), left_bytes=2000)
    require_fatal(config, disk, config.summary_path, fill)
    written = rows_of(config)
    disk.free()
    assert require_finished(config, written) == len(rows)
    assert json.loads(config.summary_path.read_text())["rows"]["ok"] == len(rows)


def test_a_full_disk_under_the_manifest_is_found_before_the_model_is_loaded(
    null_model: Path, source: Path, disk: Disk, expected: list[dict[str, Any]]
) -> None:
    config = make_config(null_model, source, disk.folder / "out.parquet")
    disk.fill(left_bytes=LOCK_BYTES)
    phases: set[Phase] = set()
    with pytest.raises(StorageError) as failed:
        run_null(config, on_stats=lambda stats: phases.add(stats.phase))
    manifest = config.journal_dir / "manifest.json"
    assert failed.value.message == f"cannot write {manifest}: {disk.reason}"
    assert Phase.LOADING not in phases
    disk.free()
    assert require_finished(config, expected) == 0


def test_a_full_disk_under_the_lock_is_found_first(
    null_model: Path, source: Path, disk: Disk, expected: list[dict[str, Any]]
) -> None:
    config = make_config(null_model, source, disk.folder / "out.parquet")
    disk.fill()
    with pytest.raises(StorageError) as failed:
        run_null(config)
    assert failed.value.message == f"cannot write {config.journal_dir / 'lock'}: {disk.reason}"
    disk.free()
    assert require_finished(config, expected) == 0


def test_a_full_disk_under_standard_input_s_copy_costs_no_row(
    null_model: Path,
    source: Path,
    disk: Disk,
    expected: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = dataclasses.replace(
        make_config(null_model, source, disk.folder / "out.parquet"), inputs=("-",)
    )
    with source.open() as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        disk.fill(left_bytes=20_000)
        with pytest.raises(StorageError) as failed:
            run_null(config)
    spool = config.journal_dir / "stdin.jsonl"
    assert failed.value.message == f"cannot write {spool}: {disk.reason}"
    disk.free()
    with source.open() as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        require_finished(config, expected)


def test_free_space_is_checked_before_the_output_is_begun(
    null_model: Path, source: Path, mounted: MountedDisk, expected: list[dict[str, Any]]
) -> None:
    config = make_config(null_model, source, mounted.folder / "out.parquet")
    with pytest.raises(StorageError) as failed:
        run_null(config, on_stats=FillWhen(mounted, lambda stats: stats.phase is Phase.FINALIZING))
    num_bytes = journal_bytes(config.journal_dir)
    assert failed.value.message == (
        f"cannot write {config.output}: it needs about {num_bytes:,} bytes; 0 bytes are free"
    )
    assert failed.value.hint == mounted.hint
    mounted.free()
    assert require_finished(config, expected) == NUM_ROWS


def test_a_status_that_cannot_be_written_stops_nothing(
    null_model: Path, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(null_model, source, tmp_path / "out.parquet")
    (config.journal_dir / ".status.json.tmp").mkdir(parents=True)
    assert run_null(config).exit_code == 0
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [
        f"cannot write {config.journal_dir / 'status.json'}: Is a directory; the run goes on"
    ]
