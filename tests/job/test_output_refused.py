"""Outputs that cannot be written where they are asked for: refused before anything is loaded."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nanobatch.errors import OutputError
from nanobatch.job_config import JobConfig
from tests.job.full_disk import mounted_disk
from tests.job.null_jobs import PROMPTS, null_config, run_null, write_lines

NOBODY = 65534


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", PROMPTS)


def test_a_read_only_file_system_is_refused_before_anything_is_loaded(
    null_model: Path, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    try:
        with mounted_disk(tmp_path / "disk", is_read_only=True) as disk:
            config = null_config(null_model, source, disk.folder / "out.parquet")
            require_refused(config, f"cannot write in {disk.folder}: Read-only file system")
    except PermissionError as error:
        pytest.skip(f"this process may not mount a file system: {error.strerror}")


def test_a_folder_without_permission_is_refused_before_anything_is_loaded(
    null_model: Path, source: Path
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        config = null_config(null_model, source, Path(folder) / "out.parquet")
        with unprivileged():
            require_refused(config, f"cannot write in {folder}: Permission denied")


@contextmanager
def unprivileged() -> Iterator[None]:
    """Do what is in the block as a user to whom permissions apply."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def require_refused(config: JobConfig, message: str) -> None:
    with pytest.raises(OutputError) as refused:
        run_null(config, on_stats=lambda _stats: pytest.fail("something was begun"))
    assert (refused.value.exit_code, refused.value.message) == (2, message)
    assert refused.value.hint == "choose another folder for the output"
