"""Merging shards: what is written, and the proof that comes before it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.errors import CoverageError, OutputError
from nanobatch.job.merge import MergeResult, merge_shards
from tests.job.shard_files import (
    NUM_JOB_ROWS,
    merge,
    output_rows,
    shard_json,
    shard_path,
    write_rows,
    write_shard,
    write_shards,
    write_summary,
)

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return rows
    stream = pa.input_stream(str(path), compression="detect")
    return [json.loads(line) for line in stream.read().splitlines()]


@pytest.mark.parametrize("num_shards", [1, 7, 40])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_shards_in_any_order_become_all_rows_in_order(
    suffix: str, num_shards: int, tmp_path: Path
) -> None:
    shards = write_shards(tmp_path, num_shards, suffix)
    output = tmp_path / "new" / "folder" / f"all{suffix}"
    done = merge(shards[::-1], output)
    assert read(output) == output_rows(range(NUM_JOB_ROWS))
    assert done == MergeResult(
        num_shards=num_shards, num_rows=NUM_JOB_ROWS, num_errors=4, was_complete=False
    )
    assert sorted(path.name for path in output.parent.iterdir()) == [
        output.name,
        f"{output.name}.summary.json",
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_jsonl_is_merged_whatever_compresses_it(suffix: str, tmp_path: Path) -> None:
    shards = [
        write_shard(shard_path(tmp_path, index, 4, other), index, 4)
        for index, other in enumerate([".jsonl", ".jsonl.gz", ".ndjson", ".jsonl.zst"])
    ]
    output = tmp_path / f"all{suffix}"
    merge(shards, output)
    assert read(output) == output_rows(range(NUM_JOB_ROWS))


def test_a_compressed_output_is_one_member_that_depends_on_its_rows_alone(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3, ".jsonl.gz")
    once, whole = tmp_path / "once.jsonl.gz", tmp_path / "whole.jsonl.gz"
    merge(shards, once)
    write_rows(whole, output_rows(range(NUM_JOB_ROWS)), None)
    assert once.read_bytes() == whole.read_bytes()


def test_parquet_keeps_schema_and_metadata_without_the_shard(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 7, ".parquet")
    output = tmp_path / "all.parquet"
    merge(shards, output)
    schema = pq.read_schema(output)
    assert schema.equals(pq.read_schema(shards[0]))
    assert set(schema.metadata) == {b"nanobatch.job"}
    assert pq.ParquetFile(output).num_row_groups == 1


def test_samples_of_a_row_stay_together(tmp_path: Path) -> None:
    rows = output_rows(range(NUM_JOB_ROWS), num_samples=3)
    shards = []
    for index in range(3):
        shard = shard_json(index, 3)
        own = [
            row for row in rows if 0 <= row["row_index"] - shard["first_row"] < shard["num_rows"]
        ]
        shards.append(write_shard(shard_path(tmp_path, index, 3), index, 3, rows=own))
    merge(shards, tmp_path / "all.jsonl")
    assert read(tmp_path / "all.jsonl") == rows


def test_openai_lines_are_known_by_their_ids(tmp_path: Path) -> None:
    shards = []
    for index in range(3):
        shard = shard_json(index, 3)
        path = shard_path(tmp_path, index, 3)
        numbers = range(shard["first_row"], shard["first_row"] + shard["num_rows"])
        path.write_text(
            "".join(f'{{"id":"batch_req_0f0f-{n}","custom_id":"a"}}\n' for n in numbers)
        )
        write_summary(path, output_rows(numbers), shard)
        shards.append(path)
    output = tmp_path / "all.jsonl"
    merge(shards, output)
    assert output.read_bytes() == b"".join(path.read_bytes() for path in shards)
    lines = shards[1].read_bytes().splitlines(keepends=True)
    shards[1].write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(CoverageError, match="lacks row 7"):
        merge(shards, tmp_path / "other.jsonl")


def test_a_job_without_rows_is_merged_with_its_schema(tmp_path: Path) -> None:
    shards = [
        write_shard(shard_path(tmp_path, index, 2, ".parquet"), index, 2, num_job_rows=0)
        for index in range(2)
    ]
    merge(shards, tmp_path / "all.parquet")
    assert pq.read_table(tmp_path / "all.parquet").num_rows == 0
    assert pq.read_schema(tmp_path / "all.parquet").equals(pq.read_schema(shards[0]))


def test_globs_are_expanded_and_what_lies_beside_outputs_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path, 3)
    (tmp_path / "out-00001-of-00003.jsonl.nanobatch").mkdir()
    monkeypatch.chdir(tmp_path)
    assert merge_shards(["out*"], "out.jsonl").num_rows == NUM_JOB_ROWS
    assert merge_shards(["out*"], "out.jsonl").was_complete
    named = [path.name for path in tmp_path.glob("out-*")]
    assert merge_shards(named, "other.jsonl").num_rows == NUM_JOB_ROWS


def test_the_summary_adds_the_shards_up(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    output = tmp_path / "all.jsonl"
    merge(shards, output)
    summary = json.loads((tmp_path / "all.jsonl.summary.json").read_bytes())
    assert summary["rows"] == {
        "total": 23,
        "ok": 19,
        "error": 4,
        "errors_by_code": {"bad_type": 4},
        "hit_max_tokens": 2,
    }
    assert summary["tokens_of_this_run"] == {
        "prompt": 230,
        "output": 161,
        "prefix_hit_rate": 0.5,
        "prefill_per_s": 100.0,
        "decode_per_s": 50.0,
    }
    assert summary["seconds"] == {"running": 4.0}
    assert (summary["exit_code"], summary["shard"], summary["layout"]["shard"]) == (3, None, None)
    assert summary["output_bytes"] == output.stat().st_size
    assert (
        summary["fingerprint"]
        == json.loads((tmp_path / f"{shards[0].name}.summary.json").read_bytes())["fingerprint"]
    )
    assert [entry["first_row"] for entry in summary["shards"]] == [0, 11]


def test_what_sharing_saved_of_all_shards_is_a_share_of_what_they_attended_to(
    tmp_path: Path,
) -> None:
    shards = []
    for index, (attended, saved) in enumerate(((1_000, 900), (3_000, 0))):
        rate = saved / attended
        tokens = {"attended_kv": attended, "saved_kv": saved, "kv_saved_rate": rate}
        path = tmp_path / f"s-{index:05}-of-00002.jsonl"
        write_shard(path, index, 2)
        of_shard = json.loads(Path(f"{path}.summary.json").read_bytes())
        of_shard["tokens_of_this_run"] |= tokens
        Path(f"{path}.summary.json").write_text(json.dumps(of_shard))
        shards.append(path)
    merge(shards, tmp_path / "all.jsonl")
    merged = json.loads((tmp_path / "all.jsonl.summary.json").read_bytes())["tokens_of_this_run"]
    assert (merged["attended_kv"], merged["saved_kv"]) == (4_000, 900)
    assert merged["kv_saved_rate"] == 0.225


def test_parquet_shards_need_no_summary(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3, ".parquet")
    Path(f"{shards[1]}.summary.json").unlink()
    output = tmp_path / "all.parquet"
    assert merge(shards, output).num_errors == 4
    summary = json.loads(Path(f"{output}.summary.json").read_bytes())
    assert summary["rows"]["errors_by_code"] == {"bad_type": 4}
    assert (summary["tokens_of_this_run"], summary["exit_code"]) == (None, 3)


def test_a_folder_of_part_files_is_a_shard(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2, ".parquet")
    folder = tmp_path / "out-00001-of-00002"
    folder.mkdir()
    rows = output_rows(range(11, 23))
    for number, part in enumerate((rows[:5], rows[5:])):
        write_rows(folder / f"part-{number:05d}.parquet", part, shard_json(1, 2))
    with pytest.raises(CoverageError, match="has no _SUCCESS"):
        merge([shards[0], folder], tmp_path / "all.parquet")
    (folder / "_SUCCESS").touch()
    num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    write_summary(folder, rows, shard_json(1, 2), output_bytes=num_bytes)
    merge([shards[0], folder], tmp_path / "all.parquet")
    assert read(tmp_path / "all.parquet") == output_rows(range(NUM_JOB_ROWS))


def test_a_merge_that_was_done_is_not_done_again(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    output = tmp_path / "all.jsonl"
    merge(shards, output)
    written = output.stat().st_mtime_ns
    assert merge(shards, output) == MergeResult(
        num_shards=3, num_rows=23, num_errors=4, was_complete=True
    )
    assert output.stat().st_mtime_ns == written


def test_an_output_of_other_shards_is_replaced_only_if_asked(tmp_path: Path) -> None:
    output = tmp_path / "all.jsonl"
    merge(write_shards(tmp_path / "old", 2), output)
    shards = write_shards(tmp_path / "new", 3)
    with pytest.raises(OutputError, match="exists and is not made of these shards"):
        merge(shards, output)
    assert not merge(shards, output, overwrite=True).was_complete
    assert merge(shards, output).was_complete
