"""Fixtures of the command line's tests."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from tests.cli.configured import Configured
from tests.cli.program import Program


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), "llama")


@pytest.fixture
def program(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Program]:
    """The program in this process, with its logging taken down afterwards."""
    for name in [name for name in os.environ if name.startswith("NANOBATCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    handlers, level = logging.root.handlers[:], logging.root.level
    yield Program(capfdbinary)
    logging.root.handlers[:], logging.root.level = handlers, level


@pytest.fixture
def configured(program: Program, monkeypatch: pytest.MonkeyPatch) -> Configured:
    """The program up to the job that it would run."""
    return Configured(program, monkeypatch)
