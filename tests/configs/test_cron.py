"""The night's script answers what lies in a folder, and speaks only when something is wrong."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.program import ROOT

# Ends with the code that the input holds, and writes the output as a run with that code does.
NANOBATCH = f"""#!{sys.executable}
import pathlib, sys
source, output = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[4])
print("log of", source.name, *sys.argv[5:])
code = int(source.read_text())
if code in (0, 3):
    output.write_text("answers")
sys.exit(code)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What one night left: exit code, what cron would mail, outputs and the log."""

    code: int
    mail: list[str]
    outputs: list[str]
    log: list[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    command = tmp_path / "bin" / "nanobatch"
    command.parent.mkdir()
    command.write_text(NANOBATCH)
    command.chmod(0o755)
    (tmp_path / "inbox").mkdir()
    return tmp_path


def run_night(folder: Path, inputs: dict[str, int], *, hours: int = 7) -> Night:
    """Put inputs in the inbox, each with the code that its run ends with, and run the script."""
    for name, code in inputs.items():
        (folder / "inbox" / f"{name}.jsonl").write_text(str(code))
    done = subprocess.run(
        [ROOT / "configs/cron/nightly.sh"],
        env={
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "INBOX": str(folder / "inbox"),
            "OUTBOX": str(folder / "outbox"),
            "CONFIG": "job.toml",
            "HOURS": str(hours),
            "LOG": str(folder / "night.log"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log = folder / "night.log"
    return Night(
        code=done.returncode,
        mail=done.stdout.splitlines(),
        outputs=sorted(path.name for path in (folder / "outbox").iterdir()),
        log=log.read_text().splitlines() if log.exists() else [],
    )


def test_a_good_night_is_silent(folder: Path) -> None:
    night = run_night(folder, {"a": 0, "b": 0})
    assert (night.code, night.mail) == (0, [])
    assert night.outputs == ["a.parquet", "b.parquet"]
    assert night.log[0].startswith("log of a.jsonl --config job.toml --stop-after 25")
    assert run_night(folder, {}).log == night.log  # what is done is not run again


def test_an_empty_folder_is_nothing_to_speak_of(folder: Path) -> None:
    assert run_night(folder, {}) == Night(code=0, mail=[], outputs=[], log=[])


def test_the_morning_is_no_failure(folder: Path) -> None:
    night = run_night(folder, {"a": 75, "b": 0})
    assert (night.code, night.mail, night.outputs) == (0, [], [])
    assert run_night(folder, {"a": 0}).outputs == ["a.parquet", "b.parquet"]
    assert run_night(folder, {"c": 0}, hours=0).outputs == ["a.parquet", "b.parquet"]


def test_a_failure_is_mailed_and_the_next_file_is_answered(folder: Path) -> None:
    night = run_night(folder, {"a": 1, "b": 0, "c": 3})
    assert night.code == 3
    assert night.outputs == ["b.parquet", "c.parquet"]
    inbox, outbox = folder / "inbox", folder / "outbox"
    mail = [line for line in night.mail if not line.startswith("log of")]
    assert mail == [
        f"{inbox}/a.jsonl: nanobatch ended with 1, finished rows are kept",
        f"{outbox}/c.parquet: finished, with error rows",
    ]


@pytest.mark.parametrize(
    "script", ["slurm/requeue.sbatch", "slurm/array.sbatch", "cron/nightly.sh"]
)
def test_a_script_stops_at_what_goes_wrong(script: str) -> None:
    lines = (ROOT / "configs" / script).read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "set -euo pipefail" in lines
