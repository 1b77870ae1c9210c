"""`-o DIR/`: part files over fixed row ranges, each complete when it appears, `_SUCCESS` last."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import OutputError, ResumeMismatchError
from nanobatch.job.stats import JobStats, Phase
from nanobatch.job.stop_signal import StopSignal
from nanobatch.job_config import JobConfig, StartOver
from tests.job.null_jobs import (
    PROMPTS,
    StopAfter,
    null_config,
    read_rows,
    run_null,
    without_cached_tokens,
    write_lines,
)


@pytest.fixture
def config(null_model: Path, tmp_path: Path) -> JobConfig:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    return null_config(
        null_model, source, tmp_path / "out", rows_per_part=7, engine={"max_num_seqs": 4}
    )


def to_folder(config: JobConfig, **changes: Any) -> JobConfig:
    return dataclasses.replace(config, output=f"{config.output}/", **changes)


def rows_of_parts(config: JobConfig) -> list[dict[str, Any]]:
    folder = Path(config.output)
    assert (folder / "_SUCCESS").exists()
    parts = sorted(folder.glob("part-*"))
    rows = [read_rows(part) for part in parts]
    assert [len(part) for part in rows[:-1]] == [config.rows_per_part] * (len(parts) - 1)
    return [row for part in rows for row in part]


def whole_rows(config: JobConfig, suffix: str = ".parquet") -> list[dict[str, Any]]:
    whole = dataclasses.replace(config, output=config.output.rstrip("/") + f"-whole{suffix}")
    run_null(whole)
    return read_rows(Path(whole.output))


def test_part_files_together_are_the_file_that_one_output_would_be(config: JobConfig) -> None:
    folder = to_folder(config)
    result = run_null(folder)
    assert (result.exit_code, result.num_rows) == (0, len(PROMPTS))
    names = sorted(path.name for path in Path(folder.output).iterdir())
    assert names == ["_SUCCESS", *(f"part-{number:05d}.parquet" for number in range(6))]
    assert rows_of_parts(folder) == whole_rows(config)
    assert not folder.journal_dir.exists()
    assert json.loads(folder.summary_path.read_text())["rows"]["total"] == len(PROMPTS)


def test_the_folder_s_suffix_says_the_format_of_its_parts(
    config: JobConfig, tmp_path: Path
) -> None:
    folder = dataclasses.replace(config, output=f"{tmp_path}/answers.jsonl/")
    run_null(folder)
    assert (tmp_path / "answers.jsonl" / "part-00005.jsonl").exists()
    assert rows_of_parts(folder) == whole_rows(config, ".jsonl")


def test_parts_appear_while_the_run_goes_on(config: JobConfig) -> None:
    folder = to_folder(config)
    seen: list[int] = []

    def look(stats: JobStats) -> None:
        if stats.phase is Phase.RUNNING:
            seen.append(len(list(Path(folder.output).glob("part-*"))))
            assert not (Path(folder.output) / "_SUCCESS").exists()

    run_null(folder, on_stats=look)
    assert seen == sorted(seen)
    assert 2 <= max(seen) < 6


def test_a_stopped_run_keeps_its_parts_and_writes_only_the_others(config: JobConfig) -> None:
    folder = to_folder(config)
    stop = StopSignal()
    assert run_null(folder, stop=stop, on_stats=StopAfter(25, stop)).exit_code == 75
    kept = {path.name: path.stat() for path in Path(folder.output).glob("part-*")}
    assert 1 <= len(kept) <= 3
    assert list(Path(folder.output).glob(".*")) == []
    assert run_null(folder).exit_code == 0
    for name, before in kept.items():
        after = (Path(folder.output) / name).stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert without_cached_tokens(rows_of_parts(folder)) == without_cached_tokens(whole_rows(config))


@pytest.mark.parametrize("stop_after_rows", [25, len(PROMPTS) + 1])
def test_a_retried_error_is_replaced_in_a_part_that_is_there(
    config: JobConfig, stop_after_rows: int
) -> None:
    """Whether the job was stopped, or finished with its journal kept."""
    too_long = {"prompt": "word " * 3000}
    write_lines(Path(config.inputs[0]), [PROMPTS[0], too_long, *PROMPTS[2:]])
    folder = to_folder(config, keep_journal=True)
    stop = StopSignal()
    code = run_null(folder, stop=stop, on_stats=StopAfter(stop_after_rows, stop)).exit_code
    assert code == (75 if stop_after_rows == 25 else 3)
    assert read_rows(Path(folder.output) / "part-00000.parquet")[1]["status"] == "error"
    engine = dataclasses.replace(folder.engine, long_prompts="truncate-left")
    retry = dataclasses.replace(folder, engine=engine, start_over=StartOver(retry_errors=True))
    assert run_null(retry).exit_code == 0
    assert [row["status"] for row in rows_of_parts(retry)] == ["ok"] * len(PROMPTS)


def test_a_part_that_was_removed_is_written_again(config: JobConfig) -> None:
    folder = to_folder(config)
    stop = StopSignal()
    run_null(folder, stop=stop, on_stats=StopAfter(30, stop))
    (Path(folder.output) / "part-00000.parquet").unlink()
    run_null(folder)
    assert without_cached_tokens(rows_of_parts(folder)) == without_cached_tokens(whole_rows(config))


def test_another_size_of_parts_may_be_chosen_when_a_run_is_continued(config: JobConfig) -> None:
    stop = StopSignal()
    run_null(to_folder(config), stop=stop, on_stats=StopAfter(30, stop))
    wider = to_folder(config, rows_per_part=11)
    run_null(wider)
    assert len(rows_of_parts(wider)) == len(PROMPTS)


def test_no_rows_are_one_empty_part(config: JobConfig, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"")
    folder = to_folder(config)
    assert run_null(folder).exit_code == 0
    assert rows_of_parts(folder) == []


def test_a_complete_folder_leaves_nothing_to_do_and_another_job_s_is_refused(
    config: JobConfig,
) -> None:
    folder = to_folder(config)
    run_null(folder)
    assert run_null(folder).stats is None
    with pytest.raises(ResumeMismatchError, match="other --rows-per-part"):
        run_null(to_folder(config, rows_per_part=9))
    with pytest.raises(ResumeMismatchError, match="limit"):
        run_null(to_folder(config, limit=3))


def test_overwriting_replaces_the_parts_and_removes_those_that_are_too_many(
    config: JobConfig,
) -> None:
    run_null(to_folder(config))
    fewer = to_folder(config, limit=10, start_over=StartOver(overwrite=True))
    assert run_null(fewer).exit_code == 0
    assert [row["row_index"] for row in rows_of_parts(fewer)] == list(range(10))


def test_a_folder_that_is_none_of_ours_is_refused(config: JobConfig) -> None:
    folder = to_folder(config)
    Path(folder.output).mkdir()
    (Path(folder.output) / "precious").write_text("x")
    with pytest.raises(OutputError, match="not the result of a finished run"):
        run_null(folder)
    with pytest.raises(OutputError, match="is a folder"):
        run_null(config)
