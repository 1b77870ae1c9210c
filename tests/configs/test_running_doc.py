"""What docs/running.md says of options, files and exit codes is so."""

import re
from pathlib import Path

from nanobatch.cli.app import app
from nanobatch.errors import NanobatchError, Stopped, UsageError
from tests.cli.configured import Configured
from tests.cli.program import ROOT, Program

TEXT = (ROOT / "docs/running.md").read_text()


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 120


def test_its_configuration_file_is_taken(configured: Configured, tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "job.toml").write_text(block)
    job = configured("in.jsonl", "-o", "out.jsonl", "--config", tmp_path / "job.toml")
    assert (job.columns, job.stop_after_s) == (("id", "score"), 27_000.0)
    assert not job.show_progress


def test_its_flags_and_files_exist(program: Program) -> None:
    names = [command.callback.__name__ for command in app.registered_commands if command.callback]
    helps = "".join(program(name, "--help").out.decode() for name in names)
    foreign = {"--array", "--signal"}  # sbatch's
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) - foreign:
        assert flag in helps, flag
    for path in re.findall(r"\bconfigs/[\w./-]+\w", TEXT):
        assert (ROOT / path).is_file(), path


def test_its_exit_codes_are_the_program_s() -> None:
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)]
    assert codes == [0, 3, 75, 130, 1, 2]
    assert [Stopped.exit_code, NanobatchError.exit_code, UsageError.exit_code] == [75, 1, 2]
