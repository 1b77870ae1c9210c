"""What becomes of a journal beside a complete output."""

import dataclasses
from pathlib import Path

import pytest

from nanobatch.job.stop_signal import StopSignal
from nanobatch.job_config import JobConfig, StartOver
from tests.job.null_jobs import PROMPTS, StopAfter, null_config, run_null, write_lines


@pytest.fixture
def config(null_model: Path, tmp_path: Path) -> JobConfig:
    source = write_lines(tmp_path / "in.jsonl", [*PROMPTS, {"prompt": ""}])
    return null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 4})


def with_flags(config: JobConfig, **flags: bool) -> JobConfig:
    return dataclasses.replace(config, start_over=StartOver(**flags))


def test_what_the_output_was_written_from_is_removed(config: JobConfig) -> None:
    run_null(dataclasses.replace(config, keep_journal=True))
    assert config.journal_dir.exists()
    assert run_null(config).stats is None
    assert not config.journal_dir.exists()


def test_the_journal_of_a_finished_retry_is_removed(config: JobConfig) -> None:
    run_null(config)
    retry = with_flags(config, retry_errors=True)
    run_null(dataclasses.replace(retry, keep_journal=True))
    assert run_null(config).stats is None
    assert not config.journal_dir.exists()


def test_what_a_removal_left_is_removed(config: JobConfig) -> None:
    run_null(config)
    config.journal_dir.mkdir()
    assert run_null(config).stats is None
    assert not config.journal_dir.exists()


@pytest.mark.parametrize("flag", ["overwrite", "retry_errors"])
def test_work_in_progress_stays(config: JobConfig, flag: str) -> None:
    run_null(config)
    begun = with_flags(config, **{flag: True})
    stop = StopSignal()
    run_null(begun, stop=stop, on_stats=StopAfter(10, stop))
    segments = [path.read_bytes() for path in config.journal_dir.glob("*.journal")]
    assert run_null(config).stats is None
    assert [path.read_bytes() for path in config.journal_dir.glob("*.journal")] == segments
