"""Asks the program which job it would run, without running it."""

from pathlib import Path

import pytest

from nanobatch.cli import run_job
from nanobatch.job_config import JobConfig
from tests.cli.program import Ended, Program


class Configured:
    """`nanobatch run` up to the job."""

    def __init__(self, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        self._program = program
        self._jobs: list[JobConfig] = []
        monkeypatch.setattr(run_job, "run_with_progress", self._take)

    def __call__(self, *arguments: str | Path) -> JobConfig:
        """Return the job of `nanobatch run` with these arguments."""
        ended = self.ended(*arguments)
        assert ended.code == 0, ended.err
        return self._jobs[-1]

    def ended(self, *arguments: str | Path) -> Ended:
        """Return what `nanobatch run` with these arguments prints before the job."""
        return self._program("run", *arguments)

    def _take(self, config: JobConfig, *, debug: bool) -> int:
        self._jobs.append(config)
        return 0
