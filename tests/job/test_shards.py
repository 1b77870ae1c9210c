"""A job in seven shards, merged, is the job in one run: contract.md, promise 20."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.cli.shard_option import shard_output
from nanobatch.errors import CoverageError, ResumeMismatchError
from nanobatch.job.merge import merge_shards
from nanobatch.job.observe import JobState, observe_job
from nanobatch.job_config import JobConfig, Shard
from tests.job.null_jobs import null_config, run_null, write_lines

NUM_SHARDS = 7
SAMPLED = {"temperature": 1.0, "max_tokens": 8}


def flat_rows(num_rows: int) -> list[dict[str, Any]]:
    """Return rows of which some are bad and the later ones bring columns and types of their own."""
    rows: list[dict[str, Any]] = []
    for index in range(num_rows):
        row: dict[str, Any] = {"id": index, "prompt": f"the answer of {index} is", "score": index}
        if index % 9 == 4:
            row = {"id": "bad", "note": "no prompt"}
        if index % 11 == 10:
            row["temperature"] = -1
        if index > num_rows // 2:
            row |= {"score": f"about {index}", "late": [index]}
        rows.append(row)
    return rows


def batch_rows(num_rows: int) -> list[dict[str, Any]]:
    """Return batch lines; every tenth has the id of a line far before it, so of another shard."""
    return [
        {
            "custom_id": f"line {index % 50 if index % 10 == 0 else index}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": f"say {index}"}]},
        }
        for index in range(num_rows)
    ]


def run_whole(config: JobConfig) -> tuple[Path, int]:
    """Run a job in one piece; return its output and exit code."""
    return Path(config.output), run_null(config).exit_code


def run_shard(config: JobConfig, index: int, num_shards: int) -> tuple[Path, int]:
    """Run one shard of a job; return its output and exit code."""
    shard = Shard(index=index, num_shards=num_shards)
    output = shard_output(config.output, shard)
    return run_whole(dataclasses.replace(config, shard=shard, output=output))


def run_shards(config: JobConfig, num_shards: int = NUM_SHARDS) -> tuple[list[Path], set[int]]:
    """Run a job in shards; return their outputs and exit codes."""
    ended = [run_shard(config, index, num_shards) for index in range(num_shards)]
    return [output for output, _ in ended], {code for _, code in ended}


def assert_equal_files(merged: Path, whole: Path) -> None:
    if merged.suffix != ".parquet":
        assert merged.read_bytes() == whole.read_bytes()
        return
    assert pq.read_schema(merged).equals(pq.read_schema(whole), check_metadata=True)
    assert pq.read_table(merged).equals(pq.read_table(whole))


def assert_merged_equals_whole(config: JobConfig, folder: Path) -> list[Path]:
    """Run a job whole and in shards, which are merged; return the shards."""
    # Without the cache not even cached_tokens may differ.
    engine = dataclasses.replace(config.engine, enable_prefix_caching=False)
    config = dataclasses.replace(config, engine=engine)
    whole, code = run_whole(config)
    shards, codes = run_shards(config)
    assert max(codes) == code
    merged = folder / "merged" / whole.name
    done = merge_shards([str(path) for path in reversed(shards)], str(merged))
    assert_equal_files(merged, whole)
    one, other = (json.loads(Path(f"{path}.summary.json").read_bytes()) for path in (merged, whole))
    assert (done.num_rows, done.num_errors) == (other["rows"]["total"], other["rows"]["error"])
    for key in ("exit_code", "fingerprint", "layout", "shard", "rows", "version", "output_bytes"):
        if key != "output_bytes" or whole.suffix != ".parquet":
            assert one[key] == other[key], key
    tokens = ("prompt", "output", "cached")
    assert [one["tokens_of_this_run"][name] for name in tokens] == [
        other["tokens_of_this_run"][name] for name in tokens
    ]
    return shards


@pytest.mark.parametrize(
    ("suffix", "num_rows"),
    [(".parquet", 100), (".parquet", 5), (".jsonl", 100), (".jsonl", 5), (".jsonl.gz", 100)],
)
def test_merged_shards_equal_the_unsharded_run(
    suffix: str, num_rows: int, null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", flat_rows(num_rows))
    config = null_config(null_model, source, tmp_path / f"out{suffix}", sampling=SAMPLED)
    shards = assert_merged_equals_whole(config, tmp_path)
    if suffix == ".parquet":
        sizes = [pq.read_metadata(path).num_rows for path in shards]
        assert sizes == ([14, 14, 14, 15, 14, 14, 15] if num_rows == 100 else [0, 1, 1, 0, 1, 1, 1])


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_shards_know_the_ids_that_shards_before_them_used(
    suffix: str, null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", batch_rows(100))
    config = null_config(null_model, source, tmp_path / f"out{suffix}", sampling=SAMPLED)
    assert_merged_equals_whole(config, tmp_path)
    summary = json.loads((tmp_path / f"out{suffix}.summary.json").read_bytes())
    assert summary["rows"]["errors_by_code"] == {"duplicate_id": 5}


@pytest.mark.parametrize("suffix", [".jsonl.zst", ".parquet"])
def test_several_samples_a_row_stay_together(suffix: str, null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", flat_rows(40))
    config = null_config(
        null_model, source, tmp_path / f"out{suffix}", sampling={**SAMPLED, "n": 2}
    )
    assert_merged_equals_whole(config, tmp_path)


def write_table(path: Path, rows: Sequence[int]) -> Path:
    prompts = [f"the answer of {row}" for row in rows]
    tags = [[{"k": row}] if row % 3 else None for row in rows]
    table = pa.table(
        {
            "prompt": pa.array(prompts, pa.large_string()),
            "kind": pa.array([f"kind {row % 4}" for row in rows]).dictionary_encode(),
            "tags": pa.array(tags, pa.list_(pa.struct({"k": pa.int16()}))),
        }
    )
    pq.write_table(table, path, row_group_size=5)
    return path


def test_borders_of_shards_lie_anywhere_in_several_inputs(null_model: Path, tmp_path: Path) -> None:
    inputs = [
        write_table(tmp_path / f"{name}.parquet", range(name, 3 * name)) for name in (4, 9, 12)
    ]
    config = null_config(null_model, inputs, tmp_path / "out.parquet", sampling=SAMPLED)
    assert_merged_equals_whole(config, tmp_path)
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 50


def test_csv_files_are_split_between_rows_not_lines(null_model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        lines = [f'"say\n{name} {row}",{row}\n' for row in range(15)]
        (tmp_path / f"{name}.csv").write_text("question,number\n" + "".join(lines))
    config = null_config(
        null_model,
        [tmp_path / "a.csv", tmp_path / "b.csv"],
        tmp_path / "out.parquet",
        rows={"template": "{{ question }}?"},
        sampling=SAMPLED,
    )
    assert_merged_equals_whole(config, tmp_path)


def test_shards_in_folders_of_parts_are_merged_into_one_file(
    null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", flat_rows(60))
    config = null_config(
        null_model, source, tmp_path / "out.parquet", engine={"enable_prefix_caching": False}
    )
    whole, _ = run_whole(config)
    folders = dataclasses.replace(config, output=f"{tmp_path}/parts/", rows_per_part=7)
    shards, _ = run_shards(folders, 3)
    assert [len(list(path.glob("part-*"))) for path in shards] == [3, 3, 3]
    merge_shards([str(path) for path in shards], str(tmp_path / "merged.parquet"))
    assert_equal_files(tmp_path / "merged.parquet", whole)


def test_a_merged_output_is_the_job_s_own(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", flat_rows(20))
    config = null_config(null_model, source, tmp_path / "out.jsonl")
    shards, _ = run_shards(config, 3)
    merge_shards([str(path) for path in shards], config.output)
    again = run_null(config)
    assert (again.exit_code, again.stats, again.num_rows) == (3, None, 20)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"sampling": {**SAMPLED, "top_p": 0.5}}, "sampling.top_p (0.5, not null) differs"),
        ({"columns": ()}, "columns ([], not null) differs"),
        ({"limit": 19}, "limit (19, not null), num_job_rows (19, not 20) differ"),
    ],
)
def test_a_shard_of_another_configuration_is_foreign(
    changes: dict[str, Any], difference: str, null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", flat_rows(20))
    config = null_config(null_model, source, tmp_path / "out.jsonl", sampling=SAMPLED)
    ours = run_shard(config, 0, 2)[0]
    foreign = run_shard(dataclasses.replace(config, **changes), 1, 2)[0]
    with pytest.raises(CoverageError) as raised:
        merge_shards([str(ours), str(foreign)], str(tmp_path / "all.jsonl"))
    assert raised.value.message == f"{foreign} belongs to another job than {ours}: {difference}"


def test_a_merged_output_is_known_when_the_summaries_of_its_shards_are_lost(
    null_model: Path, tmp_path: Path
) -> None:
    """The whole job's own line, and `status`, find what the Parquet metadata tell."""
    source = write_lines(tmp_path / "in.jsonl", flat_rows(40))
    config = null_config(null_model, source, tmp_path / "out.parquet")
    shards, _ = run_shards(config, 2)
    for shard in shards:
        Path(f"{shard}.summary.json").unlink()
    merge_shards([str(shard) for shard in shards], config.output)
    seen = observe_job(config.output)
    assert seen is not None
    assert (seen.state, seen.status.rows_done, seen.status.model) == (JobState.FINISHED, 40, None)
    again = run_null(config)
    assert (again.stats, again.exit_code) == (None, 3)
    with pytest.raises(ResumeMismatchError, match="limit"):
        run_null(dataclasses.replace(config, limit=3))


def test_a_merged_output_of_shards_that_met_other_prompts_names_what_differs(
    null_model: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "good"}, {"prompt": "word " * 3000}]
    config = null_config(
        null_model, write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    )
    cut = dataclasses.replace(
        config, engine=dataclasses.replace(config.engine, long_prompts="truncate-left")
    )
    shards = [run_shard(config, 0, 2)[0], run_shard(cut, 1, 2)[0]]
    merge_shards([str(shard) for shard in shards], config.output)
    with pytest.raises(ResumeMismatchError, match="long_prompts"):
        run_null(config)
