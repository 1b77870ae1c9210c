"""Fixtures of the tests that kill: one server that starts runs, one model, one input."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.job.null_jobs import write_lines
from tests.kill.forked_run import ForkServer
from tests.kill.killed_job import ROWS, KilledJob
from tests.null_model import write_null_model

MakeJob = Callable[[str, Path], KilledJob]


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer() as started:
        yield started


@pytest.fixture(scope="session")
def make_job(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> MakeJob:
    """Returns a job from the name of its output and from a folder that it makes."""
    parent = tmp_path_factory.mktemp("given")
    model = write_null_model(parent / "model")
    source = write_lines(parent / "in.jsonl", ROWS)

    def make(output_name: str, folder: Path) -> KilledJob:
        folder.mkdir()
        return KilledJob(
            server=server,
            folder=folder,
            model=model,
            source=source,
            output_name=output_name,
            is_piped=output_name.startswith("piped"),
        )

    return make
