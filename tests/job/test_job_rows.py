"""`--limit` and `--shard`: which rows a run takes, and how far it has come."""

import dataclasses
import json
from pathlib import Path

import pytest

from nanobatch.errors import ConfigError, ResumeMismatchError
from nanobatch.job.stats import JobStats
from nanobatch.job_config import JobConfig, Shard
from tests.job.null_jobs import PROMPTS, null_config, read_rows, run_null, write_lines


@pytest.fixture
def config(null_model: Path, tmp_path: Path) -> JobConfig:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    return null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 4})


@pytest.mark.parametrize(("limit", "num_rows"), [(0, 0), (1, 1), (7, 7), (40, 40), (1000, 40)])
def test_a_limit_takes_the_first_rows(limit: int, num_rows: int, config: JobConfig) -> None:
    fractions: list[float] = []

    def look(stats: JobStats) -> None:
        fractions.append(stats.input_fraction)

    result = run_null(dataclasses.replace(config, limit=limit), on_stats=look)
    assert (result.exit_code, result.num_rows) == (0, num_rows)
    rows = read_rows(Path(config.output))
    assert [row["row_index"] for row in rows] == list(range(num_rows))
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_a_limited_job_is_a_job_of_its_own(config: JobConfig) -> None:
    run_null(dataclasses.replace(config, limit=7))
    with pytest.raises(ResumeMismatchError, match=r"limit \(7 before, null now\)"):
        run_null(config)


def test_shards_are_contiguous_and_differ_by_one_row_at_most() -> None:
    for num_rows in (0, 1, 5, 100):
        for num_shards in (1, 2, 7, 16):
            ranges = [
                Shard(index=i, num_shards=num_shards).rows(num_rows) for i in range(num_shards)
            ]
            assert [row for rows in ranges for row in rows] == list(range(num_rows))
            sizes = [len(rows) for rows in ranges]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("index", "num_shards"), [(-1, 2), (2, 2), (0, 0)])
def test_a_shard_that_cannot_be_is_refused(index: int, num_shards: int) -> None:
    with pytest.raises(ConfigError):
        Shard(index=index, num_shards=num_shards)


def test_a_shard_answers_its_rows_as_the_whole_job_would(config: JobConfig) -> None:
    # What a row finds in the cache depends on the rows before it, and is in its output.
    engine = dataclasses.replace(config.engine, enable_prefix_caching=False)
    sampled = dataclasses.replace(config, sampling={"max_tokens": 12}, engine=engine)
    run_null(sampled)
    whole = read_rows(Path(config.output))
    joined = []
    for index in range(3):
        shard = dataclasses.replace(
            sampled,
            shard=Shard(index=index, num_shards=3),
            output=config.output.replace("out", f"out-{index}"),
        )
        assert run_null(shard).exit_code == 0
        joined += read_rows(Path(shard.output))
        summary = json.loads(shard.summary_path.read_text())
        assert summary["shard"] == {
            "index": index,
            "num_shards": 3,
            "first_row": 40 * index // 3,
            "num_rows": 40 * (index + 1) // 3 - 40 * index // 3,
            "num_job_rows": 40,
        }
    assert joined == whole


def test_a_limit_comes_before_shards(config: JobConfig) -> None:
    shard = dataclasses.replace(config, limit=10, shard=Shard(index=1, num_shards=2))
    run_null(shard)
    assert [row["row_index"] for row in read_rows(Path(config.output))] == [5, 6, 7, 8, 9]


def test_a_later_shard_knows_the_ids_of_earlier_ones(null_model: Path, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    ids = ["a", "b", "c", "a", "d", "b"]
    source = write_lines(tmp_path / "in.jsonl", [{"custom_id": one, "body": body} for one in ids])
    config = null_config(
        null_model,
        source,
        tmp_path / "out.parquet",
        shard=Shard(index=1, num_shards=2),
        rows={},
    )
    run_null(config)
    rows = read_rows(Path(config.output))
    assert [row["error_code"] for row in rows] == ["duplicate_id", None, "duplicate_id"]
    assert f"used before at {source}:1" in rows[0]["error_message"]


def test_standard_input_cannot_be_split(
    config: JobConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "in.jsonl").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        piped = dataclasses.replace(config, inputs=("-",), shard=Shard(index=0, num_shards=2))
        with pytest.raises(ConfigError, match="cannot be split"):
            run_null(piped)
