"""What is wrong with shards is found, named and leaves nothing: contract.md, promise 20."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nanobatch.errors import CoverageError
from nanobatch.job.merge import merge_shards
from tests.job.shard_files import (
    FINGERPRINT,
    SCHEMA,
    Row,
    output_rows,
    shard_json,
    write_rows,
    write_shard,
    write_shards,
)

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


def refusal(shards: list[Path], folder: Path) -> str:
    """Return the message of a merge that is not proven, of which nothing may be left."""
    output = folder / f"all{'.parquet' if shards[0].suffix == '.parquet' else '.jsonl'}"
    before = sorted(folder.iterdir())
    with pytest.raises(CoverageError) as raised:
        merge_shards([str(path) for path in shards], str(output))
    assert sorted(folder.iterdir()) == before
    assert raised.value.hint is not None
    assert raised.value.exit_code == 1
    return raised.value.message.replace(f"{folder}/", "")


def change_summary(path: Path, **changes: Any) -> None:
    summary = Path(f"{path}.summary.json")
    summary.write_text(json.dumps({**json.loads(summary.read_bytes()), **changes}))


def row_counts(num_rows: int) -> dict[str, Any]:
    return {"total": num_rows, "ok": num_rows, "error": 0, "errors_by_code": {}}


def test_missing_shards_are_named_with_what_is_known_of_them(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 7)
    shards[3].unlink()
    Path(f"{shards[3]}.summary.json").unlink()
    Path(f"{shards[3]}.nanobatch").mkdir()
    shards[5].unlink()
    assert refusal([shards[place] for place in (6, 0, 2, 4)], tmp_path) == (
        "missing of 7 shards: 1 (out-00001-of-00007.jsonl, not named), "
        "3 (out-00003-of-00007.jsonl, not finished: its journal is still there), "
        "5 (out-00005-of-00007.jsonl)"
    )


def test_missing_shards_are_numbers_where_names_say_nothing(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "part.jsonl", 2, 20)
    assert refusal([shard], tmp_path) == "missing of 20 shards: 0, 1, 3, 4, 5, 6, 7, 8, 11 more"


def test_a_doubled_shard_is_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    again = write_shard(tmp_path / "again.jsonl", 1, 3)
    assert refusal([*shards, again], tmp_path) == (
        "shard 1 is there twice: out-00001-of-00003.jsonl and again.jsonl"
    )
    assert refusal([*shards, shards[2]], tmp_path).startswith("shard 2 is there twice: ")


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_foreign_shard_is_named_with_what_differs(
    suffix: str, place: int, tmp_path: Path
) -> None:
    shards = write_shards(tmp_path, 3, suffix)
    other = {**FINGERPRINT, "seed": 1, "model": {"model.gguf": "1f" * 20}}
    change_summary(shards[place], fingerprint=other)
    assert refusal(shards, tmp_path) == (
        f"{shards[place].name} belongs to another job than {shards[int(place == 0)].name}: "
        "model, seed (1, not 0) differ"
    )


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"layout": {"columns": ["a"]}}, 'columns (["a"], not null)'),
        ({"layout": {"shape": "openai"}}, 'shape ("openai", not null)'),
        ({"stdin": "0f"}, 'stdin ("0f", not null)'),
        ({"fingerprint": {**FINGERPRINT, "limit": 30}}, "limit (30, not null)"),
        ({"shard": shard_json(1, 4)}, "num_shards (4, not 3)"),
        ({"shard": {**shard_json(1, 3), "num_job_rows": 24}}, "num_job_rows (24, not 23)"),
    ],
)
def test_a_shard_of_another_line_is_foreign(
    changes: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    shards = write_shards(tmp_path, 3)
    shard = changes.get("shard", shard_json(1, 3))
    change_summary(shards[1], **changes, rows=row_counts(shard["num_rows"]))
    assert refusal(shards, tmp_path) == (
        f"{shards[1].name} belongs to another job than {shards[0].name}: {difference} differs"
    )


@pytest.mark.parametrize("name", ["long_prompts", "row_timeout_s"])
def test_a_setting_that_only_retried_rows_met_may_differ(name: str, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    for shard in shards:
        value = "truncate-left" if shard is shards[1] else "error"
        change_summary(shard, fingerprint={**FINGERPRINT, name: value})
    assert merge_shards([*map(str, shards)], str(tmp_path / "all.jsonl")).num_rows == 23
    code = {"long_prompts": "prompt_too_long", "row_timeout_s": "timeout"}[name]
    rows = {"total": 8, "ok": 7, "error": 1, "errors_by_code": {code: 1}}
    change_summary(shards[2], rows=rows)
    message = refusal(shards, tmp_path)
    assert name in message
    assert message.startswith(f"{shards[1].name} belongs to another job than {shards[0].name}: ")


def test_two_ways_to_truncate_are_two_jobs(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    for shard, way in zip(shards, ("truncate-left", "truncate-middle"), strict=True):
        change_summary(shard, fingerprint={**FINGERPRINT, "long_prompts": way})
    assert "long_prompts" in refusal(shards, tmp_path)


def test_every_foreign_shard_is_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 12)
    for shard in shards[:10]:
        change_summary(shard, stdin=shard.name)
    message = refusal(shards, tmp_path)
    assert message.count("belongs to another job than out-00010-of-00012.jsonl") == 8
    assert message.endswith("; 2 more")


def test_other_columns_are_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3, ".parquet")
    table = pq.read_table(shards[2])
    pq.write_table(table.rename_columns([*SCHEMA.names[:-1], "code"]), shards[2])
    change_summary(shards[2], output_bytes=shards[2].stat().st_size)
    message = refusal(shards, tmp_path)
    assert message.startswith(f"{shards[2].name} has other columns than {shards[0].name}: ")
    assert {"code", "error_code"} == set(message.partition(": ")[2].split(", "))


def test_the_output_of_a_whole_job_is_no_shard(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    change_summary(shards[1], shard=None)
    assert (
        refusal(shards, tmp_path)
        == f"{shards[1].name} is the output of a whole job, not of a shard"
    )


@pytest.mark.parametrize("has_output", [True, False])
def test_an_unfinished_shard_is_named(has_output: bool, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    for shard in shards[1:]:
        Path(f"{shard}.summary.json").unlink()
        Path(f"{shard}.nanobatch").mkdir()
        if not has_output:
            shard.unlink()
    assert refusal(shards, tmp_path) == "; ".join(
        f"{shard.name} is not finished: its journal {shard.name}.nanobatch is still there"
        for shard in shards[1:]
    )


def test_a_journal_that_was_kept_is_no_obstacle(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    Path(f"{shards[1]}.nanobatch").mkdir()
    assert merge_shards([*map(str, shards)], str(tmp_path / "all.jsonl")).num_rows == 23


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    shards[0].unlink()
    assert refusal(shards, tmp_path) == f"{shards[0].name} does not exist"


def test_jsonl_without_its_summary_is_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    Path(f"{shards[0]}.summary.json").unlink()
    assert refusal(shards, tmp_path) == (
        f"{shards[0].name}.summary.json is missing, which says what rows {shards[0].name} holds"
    )


def test_a_parquet_file_of_somebody_else_is_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2, ".parquet")
    pq.write_table(pq.read_table(shards[1]).replace_schema_metadata({}), shards[1])
    Path(f"{shards[1]}.summary.json").unlink()
    assert refusal(shards, tmp_path) == f"{shards[1].name} is no output of nanobatch"


def test_a_summary_of_another_version_is_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    change_summary(shards[1], version=0)
    assert f"{shards[1].name}.summary.json has version 0" in refusal(shards, tmp_path)
    Path(f"{shards[1]}.summary.json").write_text("{")
    assert f"cannot read {shards[1].name}.summary.json" in refusal(shards, tmp_path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_truncated_shard_is_named(suffix: str, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3, suffix)
    whole = shards[1].read_bytes()
    shards[1].write_bytes(whole[:-5])
    assert refusal(shards, tmp_path) == (
        f"{shards[1].name} has {len(whole) - 5:,} bytes; its run wrote {len(whole):,}"
    )
    change_summary(shards[1], output_bytes=len(whole) - 5)
    message = refusal(shards, tmp_path)
    assert message.startswith(f"{shards[1].name} ")
    assert "cannot be read" in message or "is cut off" in message


def drop(place: int) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [*rows[:place], *rows[place + 1 :]]


TAMPERINGS: list[tuple[Callable[[list[Row]], list[Row]], str]] = [
    (drop(0), "lacks row 7"),
    (drop(3), "lacks row 10"),
    (drop(7), "ends before row 14; it must hold rows 7 to 14"),
    (lambda _: [], "ends before row 7; it must hold rows 7 to 14"),
    (lambda rows: [rows[0], rows[2], rows[1], *rows[3:]], "lacks row 8"),
    (
        lambda rows: [*rows[:3], rows[2], *rows[3:]],
        "holds row 9 twice or out of order",
    ),
    (lambda rows: [*rows, rows[0]], "holds row 7 twice or out of order, after row 14"),
    (
        lambda rows: [*rows, *output_rows(range(15, 16))],
        "holds row 15; the rows of its",
    ),
    (lambda rows: output_rows(range(8)), "holds row 0; the rows of its shard are 7 to 14"),
    (lambda rows: [{**rows[0], "sample_index": 1}, *rows[1:]], "lacks sample 0 of row 7"),
    (
        lambda rows: [rows[0], {**rows[0], "sample_index": 2}, *rows[1:]],
        "has sample 2 of row 7 out of place",
    ),
]


@pytest.mark.parametrize(("tamper", "message"), TAMPERINGS)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_row_that_is_missing_doubled_or_out_of_place_is_named(
    suffix: str, tamper: Callable[[list[Row]], list[Row]], message: str, tmp_path: Path
) -> None:
    shards = write_shards(tmp_path, 3, suffix)
    write_rows(shards[1], tamper(output_rows(range(7, 15))), shard_json(1, 3))
    change_summary(shards[1], output_bytes=shards[1].stat().st_size)
    assert refusal(shards, tmp_path).startswith(f"{shards[1].name} {message}")


def test_a_row_group_that_was_dropped_is_missed(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2, ".parquet")
    groups = pq.ParquetFile(shards[0])
    kept = [number for number in range(groups.num_row_groups) if number != 1]
    pq.write_table(groups.read_row_groups(kept), shards[0])
    change_summary(shards[0], output_bytes=shards[0].stat().st_size)
    assert refusal(shards, tmp_path) == f"{shards[0].name} lacks row 4"


def test_a_line_that_is_none_of_ours_is_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    lines = shards[1].read_bytes().splitlines(keepends=True)
    lines[2] = b'{"id": 3, "text": "mine"}\n'
    shards[1].write_bytes(b"".join(lines))
    change_summary(shards[1], output_bytes=shards[1].stat().st_size)
    assert refusal(shards, tmp_path) == (
        f"{shards[1].name}: line 3 is not a row that nanobatch wrote"
    )


def test_ranges_must_meet_and_reach_the_last_row(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    moved = {**shard_json(1, 3), "first_row": 8, "num_rows": 7}
    change_summary(shards[1], shard=moved, rows=row_counts(7))
    assert refusal(shards, tmp_path) == (
        f"{shards[1].name} begins at row 8; the shards before it end before row 7"
    )
    shortened = {**shard_json(2, 3), "num_rows": 7}
    change_summary(shards[1], shard=shard_json(1, 3), rows=row_counts(8))
    change_summary(shards[2], shard=shortened, rows=row_counts(7))
    assert refusal(shards, tmp_path) == "the shards end before row 22; the job has 23 rows"


def test_a_summary_that_counts_other_rows_is_named(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    change_summary(shards[1], rows=row_counts(5))
    assert refusal(shards, tmp_path) == f"{shards[1].name} has 5 rows; its shard has 8"
