"""What is finished of a job as a file: a part of what its output will be, and nothing changed."""

import dataclasses
import json
import random
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nanobatch.errors import OutputError
from nanobatch.io.journal_segment import segment_path
from nanobatch.job.export import Exported, export_partial
from nanobatch.job.manifest import manifest_path
from nanobatch.job.stop_signal import StopSignal
from nanobatch.job_config import JobConfig, Shard
from tests.job.null_jobs import PROMPTS, StopAfter, null_config, read_rows, run_null, write_lines

Row = dict[str, Any]
BATCH_LINES = [
    {"custom_id": f"c{index}", "body": {"prompt": f"what is {index}?", "n": 1 + index % 2}}
    for index in range(40)
]


def run_until(config: JobConfig, num_rows: int) -> None:
    """Run a job and stop it once so many rows are done."""
    stop = StopSignal()
    assert run_null(config, stop=stop, on_stats=StopAfter(num_rows, stop)).exit_code == 75


def small_steps(model: Path, source: Path, output: Path, **options: Any) -> JobConfig:
    """Return a job that finishes few rows at a time."""
    engine = {"max_num_seqs": 4, **options.pop("engine", {})}
    return null_config(model, source, output, engine=engine, **options)


def files_of(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def part_of(whole: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a whole output that an export of it has."""
    indices = [row["row_index"] for row in rows]
    return [row for row in whole if row["row_index"] in indices]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_an_export_is_a_part_of_what_the_output_will_be(
    null_model: Path, tmp_path: Path, suffix: str
) -> None:
    rows: list[Row] = [*PROMPTS[:9], {"prompt": ""}, *PROMPTS[10:]]
    source = write_lines(tmp_path / "in.jsonl", rows)
    output, file = tmp_path / f"out{suffix}", tmp_path / f"part{suffix}"
    config = small_steps(null_model, source, output, sampling={"n": 2, "max_tokens": 8})
    run_until(config, 15)
    before = files_of(config.journal_dir)
    exported = export_partial(str(output), str(file))
    assert files_of(config.journal_dir) == before
    assert 15 <= exported.num_rows < 40
    assert exported.num_job_rows == 40
    part = read_rows(file)
    assert len({row["row_index"] for row in part}) == exported.num_rows
    run_null(config)
    assert part == part_of(read_rows(output), part)


def test_lines_in_openai_shape_are_those_of_the_output(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", BATCH_LINES)
    output, file = tmp_path / "out.jsonl", tmp_path / "part.jsonl"
    config = small_steps(null_model, source, output)
    run_until(config, 15)
    num_rows = export_partial(str(output), str(file)).num_rows
    part = read_rows(file)
    run_null(config)
    whole = {row["custom_id"]: row for row in read_rows(output)}
    assert len(part) == num_rows >= 15
    assert part == [whole[row["custom_id"]] for row in part]
    assert all("response" in row for row in part)


@pytest.mark.parametrize("shape", [None, "openai"])
def test_a_job_with_another_output_can_be_exported_as_parquet(
    null_model: Path, tmp_path: Path, shape: str | None
) -> None:
    source = write_lines(tmp_path / "in.jsonl", BATCH_LINES)
    config = small_steps(null_model, source, tmp_path / "out.jsonl", output_shape=shape)
    run_until(config, 15)
    file = tmp_path / "part.parquet"
    num_rows = export_partial(config.output, str(file)).num_rows
    assert len({row["row_index"] for row in read_rows(file)}) == num_rows
    metadata = pq.read_metadata(file).metadata
    assert metadata[b"nanobatch.partial"] == b"true"
    assert metadata[b"nanobatch.model"].decode() == str(null_model)


def test_no_model_is_needed(null_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(null_model, model)
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = small_steps(model, source, tmp_path / "out.jsonl")
    run_until(config, 10)
    shutil.rmtree(model)
    assert export_partial(config.output, str(tmp_path / "part.jsonl")).num_rows >= 10


def test_after_a_kill_every_whole_record_is_exported(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = small_steps(null_model, source, tmp_path / "out.jsonl")
    run_until(config, 20)
    segment = segment_path(config.journal_dir, 1)
    whole, file = segment.read_bytes(), tmp_path / "part.jsonl"
    export_partial(config.output, str(file))
    all_rows = read_rows(file)
    rng = random.Random(7)
    num_rows = []
    for num_bytes in sorted(rng.sample(range(len(whole)), 25)):
        segment.write_bytes(whole[:num_bytes])
        num_rows.append(export_partial(config.output, str(file), overwrite=True).num_rows)
        part = read_rows(file)
        assert part == part_of(all_rows, part)
        assert len(part) == num_rows[-1]
        assert segment.read_bytes() == whole[:num_bytes]
    assert num_rows == sorted(num_rows)
    assert len(set(num_rows)) > 5


def test_exports_while_the_job_runs_grow_until_it_is_complete(
    null_model: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"question {index}", "index": index} for index in range(600)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    config = small_steps(null_model, source, tmp_path / "out.jsonl")
    begun = threading.Event()
    run = threading.Thread(
        target=run_null, args=(config,), kwargs={"on_stats": lambda _stats: begun.set()}
    )
    run.start()
    begun.wait()
    file = tmp_path / "part.jsonl"
    parts: list[list[Row]] = []
    with pytest.raises(OutputError) as ended:
        while True:
            export_partial(config.output, str(file), overwrite=True)
            parts.append(read_rows(file))
    run.join()
    assert ended.value.message == f"{config.output} is complete"
    whole = read_rows(Path(config.output))
    for part in parts:
        assert part == part_of(whole, part)
    num_rows = [len(part) for part in parts]
    assert num_rows == sorted(num_rows)
    assert len({*num_rows}) > 2


def test_of_a_pipe_what_came_through_it_is_exported(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = write_lines(tmp_path / "pipe", PROMPTS)
    config = small_steps(null_model, Path("-"), tmp_path / "out.parquet")
    with pipe.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        run_until(config, 20)
    monkeypatch.setattr("sys.stdin", None)
    file = tmp_path / "part.parquet"
    num_rows = export_partial(config.output, str(file)).num_rows
    part = read_rows(file)
    assert [row["id"] for row in part] == [f"row-{row['row_index']}" for row in part]
    assert len(part) == num_rows >= 20
    assert part[3]["score"] == part[3]["row_index"] / 2


def test_a_spool_cut_in_a_line_loses_that_line(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = write_lines(tmp_path / "pipe", PROMPTS)
    config = small_steps(null_model, Path("-"), tmp_path / "out.jsonl")
    with pipe.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        run_until(config, 20)
    spool = config.journal_dir / "stdin.jsonl"
    end = sum(len(line) for line in pipe.read_bytes().splitlines(keepends=True)[:6])
    spool.write_bytes(pipe.read_bytes()[: end - 4])
    assert export_partial(config.output, str(tmp_path / "cut.jsonl")).num_rows == 5
    spool.write_bytes(pipe.read_bytes()[: end - 1])  # without a line feed, yet whole
    assert export_partial(config.output, str(tmp_path / "whole.jsonl")).num_rows == 6
    spool.unlink()
    assert export_partial(config.output, str(tmp_path / "none.jsonl")).num_rows == 0


def test_a_shard_exports_its_own_rows(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    shard = Shard(index=1, num_shards=2)
    config = small_steps(null_model, source, tmp_path / "out-1.parquet", shard=shard, limit=30)
    run_until(config, 5)
    file = tmp_path / "part.parquet"
    exported = export_partial(config.output, str(file))
    assert exported == Exported(num_rows=len(read_rows(file)), num_job_rows=15)
    assert {row["row_index"] for row in read_rows(file)} <= set(range(15, 30))
    assert b"nanobatch.shard" not in pq.read_metadata(file).metadata


def test_a_job_without_a_finished_row_gives_an_empty_file(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = small_steps(null_model, source, tmp_path / "out.parquet")
    run_until(config, 5)
    segment_path(config.journal_dir, 1).unlink()
    file = tmp_path / "part.parquet"
    assert export_partial(config.output, str(file)).num_rows == 0
    assert "generated_text" in pq.read_schema(file).names
    assert manifest_path(config.journal_dir).exists()


def test_a_journal_that_is_being_removed_gives_no_export(null_model: Path, tmp_path: Path) -> None:
    """The job is complete then; its last segment goes before the manifest."""
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = null_config(null_model, source, tmp_path / "out.jsonl")
    run_null(dataclasses.replace(config, keep_journal=True))
    manifest = config.journal_dir / "manifest.json"
    recorded = json.loads(manifest.read_text())
    recorded["job"]["keep_journal"] = False
    manifest.write_text(json.dumps(recorded))
    (config.journal_dir / "segment-000001.journal").unlink()
    file = tmp_path / "part.jsonl"
    with pytest.raises(OutputError, match="is complete"):
        export_partial(config.output, str(file))
    assert not file.exists()
