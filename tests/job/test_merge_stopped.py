"""Merges that are refused, stopped or killed leave nothing that could be taken for an output."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nanobatch.errors import InputError, OutputError, StorageError
from nanobatch.job.merge import merge_shards
from tests.cli.program import ROOT
from tests.job.shard_files import NUM_JOB_ROWS, merge, write_shards


def die_in_a_merge(shards: list[Path], output: Path, place: str) -> None:
    """Merge in a process that kills itself when it calls a function."""
    program = (
        "import os, nanobatch.job.merge as merge\n"
        f"merge.{place} = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        f"merge.merge_shards({[str(path) for path in shards]!r}, {str(output)!r},"
        f" on_progress=lambda num_rows, _: {place!r} != 'die' or num_rows < 9 or merge.die())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == -9


def test_a_merge_killed_before_its_summary_is_ended_by_the_same_line(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 1)
    output = tmp_path / "all.jsonl"
    die_in_a_merge(shards, output, "merged_summary")
    assert merge(shards, output).num_rows == NUM_JOB_ROWS
    assert merge(shards, output).was_complete


@pytest.mark.parametrize("suffix", [".jsonl.zst", ".parquet"])
def test_a_merge_killed_in_the_middle_leaves_no_output(suffix: str, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3, suffix)
    output = tmp_path / f"all{suffix}"
    die_in_a_merge(shards, output, "die")
    assert not output.exists()
    assert merge(shards, output).num_rows == NUM_JOB_ROWS
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("out-")}
    assert left == {output.name, f"{output.name}.summary.json"}


def test_progress_counts_rows_and_may_stop_the_merge(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    seen: list[tuple[int, int]] = []
    merge(shards, tmp_path / "all.jsonl", on_progress=lambda *numbers: seen.append(numbers))
    assert seen == [(7, 23), (15, 23), (23, 23)]

    def stop(_num_rows: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge(shards, tmp_path / "other.jsonl", on_progress=stop)
    assert not any("other" in path.name for path in tmp_path.iterdir())


def test_a_full_disk_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path, 3)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(StorageError, match="10 bytes are free"):
        merge(shards, tmp_path / "all.jsonl")


@pytest.mark.parametrize(
    ("inputs", "output", "error", "message"),
    [
        ([], "all.jsonl", InputError, "no shard is given"),
        (["none-*.jsonl"], "all.jsonl", InputError, "none-[*].jsonl matches no file"),
        (["a.jsonl"], "all.parquet", OutputError, "all.parquet is in another format than a.jsonl"),
        (["b.parquet"], "all.jsonl", OutputError, "all.jsonl is in another format than b.parq"),
        (["a.jsonl", "b.parquet"], "all.jsonl", InputError, "a.jsonl and b.parquet have diff"),
        (["a.jsonl"], "all.csv", OutputError, "all.csv has the suffix '.csv'"),
        (["c.csv"], "all.jsonl", InputError, "c.csv is no output of nanobatch"),
        (["a.jsonl"], "a.jsonl", OutputError, "a.jsonl is an input"),
        (["a.jsonl"], "s3://x/all.jsonl", OutputError, "remote"),
        (["a.jsonl"], "d.jsonl", OutputError, "d.jsonl is a folder"),
        (["a.jsonl"], "d/", OutputError, "d/ is a folder"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    inputs: list[str],
    output: str,
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.parquet", "c.csv"):
        Path(name).touch()
    Path("d.jsonl").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=message):
        merge_shards(inputs, output)
    assert sorted(tmp_path.iterdir()) == before
