"""A run that waits for the lock of another host, which writes the output meanwhile.

Such a lock is watched for up to a minute, so what was found before may no longer be true.
"""

import dataclasses
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nanobatch.errors import ResumeMismatchError
from nanobatch.job.lock import LOCK_NAME
from nanobatch.job.lock_holder import LockHolder
from nanobatch.job_config import JobConfig
from tests.job.null_jobs import null_config, run_null, write_lines


@pytest.fixture
def config(null_model: Path, tmp_path: Path) -> JobConfig:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}, {"prompt": ""}])
    return null_config(null_model, source, tmp_path / "out.jsonl")


@contextmanager
def written_meanwhile(config: JobConfig, written: JobConfig) -> Iterator[bytes]:
    """Hold the lock as another host does, and let it end in the block with an output of its own."""
    there = Path(config.output).with_name("there.jsonl")
    elsewhere = dataclasses.replace(written, output=str(there))
    run_null(elsewhere)
    holder = dataclasses.replace(
        LockHolder.of_this_process(), host="elsewhere", boot_id="another", pid=1
    )
    config.journal_dir.mkdir()
    lock = config.journal_dir / LOCK_NAME
    lock.write_bytes(holder.content())

    def end() -> None:
        shutil.copy(elsewhere.summary_path, config.summary_path)
        shutil.copy(there, config.output)
        lock.write_bytes(b"")

    timer = threading.Timer(0.5, end)
    timer.start()
    yield there.read_bytes()
    timer.join()


def test_a_job_that_another_host_finished_meanwhile_is_not_run_again(config: JobConfig) -> None:
    with written_meanwhile(config, config):
        result = run_null(config)
    assert (result.stats, result.exit_code, result.num_rows) == (None, 3, 2)


def test_another_job_that_another_host_finished_meanwhile_is_not_replaced(
    config: JobConfig,
) -> None:
    other = dataclasses.replace(config, limit=1)
    with (
        written_meanwhile(config, other) as expected,
        pytest.raises(ResumeMismatchError, match="limit"),
    ):
        run_null(config)
    assert Path(config.output).read_bytes() == expected
