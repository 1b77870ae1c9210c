"""What a folder of part files may hold before a run, and what becomes of it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import OutputError, ResumeMismatchError
from nanobatch.job.output_place import part_path
from nanobatch.job.stop_signal import StopSignal
from nanobatch.job_config import JobConfig, StartOver
from tests.job.null_jobs import (
    PROMPTS,
    StopAfter,
    null_config,
    read_rows,
    run_null,
    write_lines,
)


@pytest.fixture
def config(null_model: Path, tmp_path: Path) -> JobConfig:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    folder = null_config(
        null_model, source, tmp_path / "out", rows_per_part=7, engine={"max_num_seqs": 4}
    )
    return dataclasses.replace(folder, output=f"{folder.output}/")


def with_flags(config: JobConfig, **flags: bool) -> JobConfig:
    return dataclasses.replace(config, start_over=StartOver(**flags))


def other_job(config: JobConfig) -> JobConfig:
    return dataclasses.replace(config, sampling={"temperature": 0.0, "max_tokens": 3})


def stop_after(config: JobConfig, num_rows: int) -> None:
    stop = StopSignal()
    assert run_null(config, stop=stop, on_stats=StopAfter(num_rows, stop)).exit_code == 75


def names(config: JobConfig) -> list[str]:
    return sorted(path.name for path in Path(config.output).iterdir())


def rows_of_parts(config: JobConfig) -> list[dict[str, Any]]:
    parts = sorted(Path(config.output).glob("part-*.parquet"))
    return [row for part in parts for row in read_rows(part)]


def test_an_empty_folder_is_written_into(config: JobConfig) -> None:
    Path(config.output).mkdir()
    (Path(config.output) / ".keep").touch()
    assert run_null(config).exit_code == 0
    assert len(rows_of_parts(config)) == len(PROMPTS)


def test_overwriting_removes_no_file_that_no_run_of_ours_can_have_written(
    config: JobConfig,
) -> None:
    folder = Path(config.output)
    folder.mkdir()
    foreign = ["part-00000.csv", "part-00001.csv", "part-00009-abc.parquet"]
    for name in foreign:
        (folder / name).write_text("precious")
    run_null(with_flags(dataclasses.replace(config, limit=3), overwrite=True))
    assert names(config) == sorted(["_SUCCESS", "part-00000.parquet", *foreign])


def test_files_that_others_put_beside_the_parts_do_not_count(config: JobConfig) -> None:
    run_null(config)
    (Path(config.output) / ".part-00000.parquet.crc").write_text("x")
    (Path(config.output) / "README").write_text("x")
    assert run_null(config).stats is None


def test_a_folder_whose_parts_another_run_has_begun_to_replace_is_not_complete(
    config: JobConfig,
) -> None:
    run_null(config)
    (Path(config.output) / "_SUCCESS").unlink()
    with pytest.raises(OutputError, match="not the result of a finished run"):
        run_null(config)


def test_a_part_that_was_changed_since_is_written_again(config: JobConfig) -> None:
    kept = dataclasses.replace(config, keep_journal=True)
    run_null(kept)
    expected = rows_of_parts(config)
    part = Path(config.output) / "part-00001.parquet"
    part.write_bytes(part.read_bytes() + b"x")
    assert run_null(kept).exit_code == 0
    assert rows_of_parts(config) == expected


def test_what_is_told_of_older_parts_is_forgotten_before_one_is_replaced(
    config: JobConfig,
) -> None:
    """After a kill in between, a run would take a part of another length for one of its own."""
    stop_after(config, 30)
    told = config.journal_dir / "parts.json"
    assert told.exists()
    stop_after(dataclasses.replace(config, rows_per_part=100), 35)
    assert not told.exists()
    assert run_null(config).exit_code == 0
    assert [row["row_index"] for row in rows_of_parts(config)] == list(range(len(PROMPTS)))


def test_restart_discards_the_parts_with_the_journal(config: JobConfig) -> None:
    stop_after(config, 30)
    other = other_job(config)
    with pytest.raises(ResumeMismatchError, match=r"sampling\.max_tokens"):
        run_null(other)
    result = run_null(with_flags(other, restart=True))
    assert result.stats is not None
    assert result.stats.num_rows_resumed == 0
    assert {row["completion_tokens"] for row in rows_of_parts(config)} <= {1, 2, 3}


def test_restart_leaves_a_finished_folder_of_another_job_alone(config: JobConfig) -> None:
    run_null(dataclasses.replace(config, keep_journal=True))
    (Path(config.output) / "_SUCCESS").unlink()
    with pytest.raises(ResumeMismatchError, match=r"sampling\.max_tokens"):
        run_null(with_flags(other_job(config), restart=True))


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("out", "part-00003.parquet"),
        ("llama-3.1-8b", "part-00003.parquet"),
        ("2026.11.29", "part-00003.parquet"),
        ("v1.jsonl", "part-00003.jsonl"),
        ("v1.5.jsonl.gz", "part-00003.jsonl.gz"),
        ("out.csv", "part-00003.csv"),
    ],
)
def test_a_version_or_a_date_is_no_suffix(folder: str, expected: str) -> None:
    assert part_path(Path(folder), 3).name == expected
