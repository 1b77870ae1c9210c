"""Promise 19: how the program ends, where no other test of the command line shows it."""

from pathlib import Path

import pytest

from tests.cli.program import Program, start, wait
from tests.job.null_jobs import write_lines
from tests.null_model import write_null_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_null_model(tmp_path_factory.mktemp("null-model"))


def test_stop_after_ends_with_75(model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": f"row {n}"} for n in range(64)])
    process = start(
        *("run", source, "-o", tmp_path / "out.jsonl", "-m", model, "--max-num-seqs", "4"),
        *("--stop-after", "2.5s"),
        module="tests.null_program",
        NULL_STEP_S="0.5",
    )
    ended = wait(process)
    assert ended.code == 75, ended.err
    assert "stopped by --stop-after 2.5s: run the same line again to continue" in ended.err
    assert not (tmp_path / "out.jsonl").exists()


STOP_AFTER_ERRORS = ("--stop-after-errors", "3")


def test_too_many_errors_end_with_1(program: Program, model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": ""}] * 1200)
    given = program("run", source, "-o", tmp_path / "a.jsonl", "-m", model, *STOP_AFTER_ERRORS)
    assert given.code == 1
    assert given.err.splitlines()[-2].endswith("; --stop-after-errors is 3")
    hopeless = program("run", source, "-o", tmp_path / "b.jsonl", "-m", model)
    assert hopeless.code == 1
    assert "rows are all errors" in hopeless.err.splitlines()[-2]
    for ended in (given, hopeless):
        assert ended.err.splitlines()[-1].startswith("hint: ")
        assert "Traceback" not in ended.err


def test_a_file_in_the_place_of_a_folder_is_refused_before_anything(
    program: Program, model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}])
    ended = program("run", source, "-o", source / "out.jsonl", "-m", model)
    assert ended.code == 2
    assert ended.error_and_hint[0].startswith("cannot write ")


def test_debug_shows_where_a_refusal_comes_from(program: Program, tmp_path: Path) -> None:
    ended = program("run", tmp_path / "no.jsonl", "-o", tmp_path / "out.jsonl", "--debug")
    assert ended.code == 2
    assert ended.err.startswith("Traceback (most recent call last):\n")
    assert ended.err.splitlines()[-2] == f"error: {tmp_path / 'no.jsonl'} does not exist"
