"""`nanobatch export --partial` from the command line."""

from pathlib import Path

import pytest

from tests.cli.program import Program
from tests.job.null_jobs import PROMPTS, read_rows, write_lines
from tests.job.test_export import run_until, small_steps
from tests.null_model import write_null_model


@pytest.fixture(scope="module")
def null_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_null_model(tmp_path_factory.mktemp("null-model"))


def test_finished_rows_are_exported_and_counted(
    program: Program, null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = small_steps(null_model, source, tmp_path / "out.jsonl")
    run_until(config, 12)
    file = tmp_path / "part.parquet"
    ended = program("export", config.output, "--partial", "-o", file)
    num_rows = len(read_rows(file))
    assert (ended.code, ended.out) == (0, b"")
    assert ended.err == f"exported {num_rows} of 40 rows to {file}\n"
    again = program("export", config.output, "--partial", "-o", file)
    assert again.code == 2
    assert again.error_and_hint == (
        f"{file} exists",
        "name another file, or replace it: --overwrite",
    )
    assert program("export", config.output, "--partial", "-o", file, "--overwrite").code == 0


def test_a_stopped_job_is_seen_by_status_and_a_finished_one_too(
    program: Program, null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = small_steps(null_model, source, tmp_path / "out.jsonl")
    run_until(config, 12)
    stopped = program("status", config.output).out.decode()
    assert stopped.splitlines()[0] == f"{config.output}: stopped (SIGTERM)"
    assert " of 40 done, 0 errors" in stopped


def test_without_partial_nothing_is_exported(program: Program, tmp_path: Path) -> None:
    ended = program("export", tmp_path / "out.jsonl", "-o", tmp_path / "part.jsonl")
    assert ended.code == 2
    assert ended.error_and_hint == (
        "export writes what is finished of a job, and only with --partial",
        "add --partial; a complete output needs no export",
    )
