"""The program with standard streams that its caller closed."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import ROOT, Ended

FAST = ("--max-tokens", "2", "--temperature", "0", "--device", "cpu", "--no-progress")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n')
    return path


def run_closing(redirection: str, *arguments: str | Path) -> Ended:
    """Run the program by a shell that closes streams."""
    line = shlex.join([sys.executable, "-m", "nanobatch", *map(str, arguments)])
    done = subprocess.run(
        f"{line} {redirection}",
        shell=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
    )
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr.decode())


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_needs_no_standard_streams(
    redirection: str, source: Path, checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    ended = run_closing(redirection, "run", source, "-o", output, "-m", checkpoint, *FAST)
    assert (ended.code, ended.out) == (0, b"")
    assert ("1 ok, 0 errors" in ended.err) is ("2>&-" not in redirection)
    assert output.read_text().count("\n") == 1


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-"])
def test_help_needs_no_standard_streams(redirection: str) -> None:
    ended = run_closing(redirection, "--help")
    assert (ended.code, ended.err) == (0, "")


def test_a_refusal_needs_no_standard_error() -> None:
    ended = run_closing("2>&-", "run")
    assert (ended.code, ended.out) == (2, b"")


def test_answers_for_a_closed_standard_output_are_refused(source: Path, checkpoint: Path) -> None:
    ended = run_closing(">&-", "run", source, "-o", "-", "-m", checkpoint)
    assert ended.code == 2
    assert ended.error_and_hint == ("standard output is closed", "name a file as the output")


def test_a_signal_needs_no_standard_error_either(source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chat.jinja")
    command = ("run", source, "-o", tmp_path / "out.jsonl", "--chat-template")
    line = shlex.join(map(str, [sys.executable, "-m", "nanobatch", *command]))
    fifo = shlex.quote(str(tmp_path / "chat.jinja"))
    # The shell can open the FIFO only when the program reads it, and then knows its number.
    script = f"{line} {fifo} 2>&- & exec 9>{fifo}; kill -TERM $!; wait $!"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["bash", "-c", script], env=environment, check=False, timeout=60)
    assert done.returncode == 75
