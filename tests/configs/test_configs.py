"""The shipped configurations work, and say what every key is for."""

import json
from pathlib import Path

import pytest

from tests.cli.configured import Configured
from tests.cli.program import ROOT, Program

CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


def test_the_configurations_that_are_promised_are_there() -> None:
    assert [path.name for path in CONFIGS] == ["h200.toml", "laptop-cpu.toml"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_key_is_taken_and_explained(path: Path, configured: Configured) -> None:
    ended = configured.ended("in.jsonl", "-o", "out.jsonl", "--config", path)
    assert (ended.code, ended.err) == (0, f"config: {path}\n")
    for line in path.read_text().splitlines():
        assert not line or "#" in line


def test_the_h200_s_is_for_its_gpu(configured: Configured) -> None:
    job = configured("in.jsonl", "-o", "out.jsonl", "--config", ROOT / "configs/h200.toml")
    assert (job.engine.device, job.engine.dtype) == ("cuda", "bfloat16")
    assert (job.engine.row_timeout_s, job.log_interval_s) == (3600.0, 60.0)


def test_the_laptop_s_runs(program: Program, checkpoint: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "the capital of"}\n')
    line = ("run", source, "-o", output, "-m", checkpoint, "--max-tokens", "4")
    ended = program(*line, "--config", ROOT / "configs/laptop-cpu.toml")
    assert ended.code == 0, ended.err
    assert json.loads(output.read_text())["status"] == "ok"
