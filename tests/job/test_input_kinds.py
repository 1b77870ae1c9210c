"""Jobs over patterns, folders and compressed files: the same rows, resumable, never their own."""

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import InputReadError
from nanobatch.job_config import JobConfig, Shard
from tests.io.failing_store import failing_store
from tests.job.null_jobs import PROMPTS, null_config, read_rows, run_null, write_lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    write_lines(path / "a.jsonl", PROMPTS[:15])
    plain = write_lines(path / "plain", PROMPTS[15:])
    (path / "b.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return path


def answers(config: JobConfig) -> list[dict[str, Any]]:
    run_null(config)
    return read_rows(Path(config.output))


@pytest.mark.parametrize("name", ["*.jsonl*", ""])
def test_a_job_in_its_input_folder_runs_again_as_the_same_job(
    null_model: Path, folder: Path, tmp_path: Path, name: str
) -> None:
    whole = write_lines(tmp_path / "whole.jsonl", PROMPTS)
    expected = answers(null_config(null_model, whole, tmp_path / "whole.out.jsonl"))
    config = null_config(null_model, folder / name, folder / "out.jsonl")
    assert answers(config) == expected
    assert run_null(config).stats is None  # nothing to do


def test_shards_in_their_input_folder_answer_as_the_whole_job(
    null_model: Path, folder: Path, tmp_path: Path
) -> None:
    pattern = folder / "*.jsonl*"
    expected = answers(null_config(null_model, pattern, tmp_path / "whole.jsonl"))
    rows = []
    for index in range(3):
        output = folder / f"out-0000{index}-of-00003.jsonl"
        config = null_config(null_model, pattern, output, shard=Shard(index=index, num_shards=3))
        rows += answers(config)
    assert rows == expected


def test_a_store_that_failed_in_mid_run_goes_on_with_the_rows_it_kept(
    null_model: Path, tmp_path: Path
) -> None:
    prompts = [{**PROMPTS[index % 40], "padding": "x" * 4_000} for index in range(60)]
    local = write_lines(tmp_path / "in.jsonl", prompts)
    expected = answers(null_config(null_model, local, tmp_path / "expected.jsonl"))
    config = replace(
        null_config(null_model, local, tmp_path / "out.jsonl", window_rows=4),
        inputs=("failing://job/*.jsonl",),
    )
    with failing_store({"/job/in.jsonl": local.read_bytes()}) as store:
        store.fails_at_bytes = 100_000
        with pytest.raises(InputReadError, match="session expired"):
            run_null(config)
        store.fails_at_bytes = None
        result = run_null(config)
    assert result.stats is not None
    assert result.stats.num_rows_resumed > 0
    assert read_rows(tmp_path / "out.jsonl") == expected
