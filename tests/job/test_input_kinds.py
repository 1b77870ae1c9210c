"""Jobs over patterns, folders and compressed files: the same rows, resumable, never their own."""

import contextlib
import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nanobatch.errors import InputReadError
from nanobatch.io.input_row import InputRow
from nanobatch.io.journal import open_journal
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs
from nanobatch.job.stats import JobStats, Phase
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


def test_every_row_before_a_damaged_place_is_answered_and_kept(
    null_model: Path, tmp_path: Path
) -> None:
    random = Random(0)
    lines = "".join(
        f'{{"prompt": "the answer of {index} is", "padding": "{random.randbytes(150).hex()}"}}\n'
        for index in range(3000)
    )
    source = tmp_path / "in.jsonl.gz"
    compressed = bytearray(gzip.compress(lines.encode()))
    compressed[len(compressed) * 2 // 3] ^= 0xFF
    source.write_bytes(compressed)
    config = null_config(null_model, source, tmp_path / "out.jsonl")
    num_rows = sum(1 for _ in readable_rows(source))
    assert 100 < num_rows < 3000
    for _ in range(2):
        with pytest.raises(InputReadError, match="at byte"):
            run_null(config)
        with open_journal(config.journal_dir, read_only=True) as index:
            assert len(index) == num_rows


def readable_rows(source: Path) -> Iterator[InputRow]:
    """Yield the rows of an input up to the place where it fails."""
    with contextlib.suppress(InputReadError):
        yield from iter_rows(resolve_inputs([str(source)]))


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet", "out/"])
def test_an_input_that_fails_while_the_output_is_written_gives_none(
    output: str, null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    whole = source.read_bytes()
    config = replace(
        null_config(null_model, source, tmp_path / "x.jsonl"), output=f"{tmp_path}/{output}"
    )

    def cut_input(stats: JobStats) -> None:
        if stats.phase is Phase.FINALIZING:
            source.write_bytes(whole[:-100])

    with pytest.raises(InputReadError, match="ends at byte"):
        run_null(config, on_stats=cut_input)
    assert not (tmp_path / output).is_file()
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    source.write_bytes(whole)
    result = run_null(config)
    assert (result.exit_code, result.num_rows) == (0, len(PROMPTS))
