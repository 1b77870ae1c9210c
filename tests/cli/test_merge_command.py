"""`nanobatch merge`: what a person sees of it, and its exit codes."""

import json
import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.program import Program, start, wait
from tests.job.shard_files import output_rows, shard_path, write_shard, write_shards


def test_a_merge_says_what_it_did_and_ends_with_0(program: Program, tmp_path: Path) -> None:
    write_shards(tmp_path, 3, ".parquet")
    output = tmp_path / "all.parquet"
    ended = program("merge", tmp_path / "out-*.parquet", "-o", output)
    assert (ended.code, ended.out) == (0, b"")
    assert ended.err == f"merged 3 shards into {output}: 23 rows, 4 of them errors\n"
    assert pq.read_table(output).to_pylist() == output_rows(range(23))
    again = program("merge", tmp_path / "out-*.parquet", "-o", output)
    assert again.code == 0
    assert again.err == f"nothing to do: {output} is complete (23 rows, 4 of them errors)\n"


def test_what_is_not_proven_ends_with_1_and_two_lines(program: Program, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 3)
    ended = program("merge", shards[0], shards[2], "-o", tmp_path / "all.jsonl")
    assert ended.code == 1
    assert ended.error_and_hint == (
        f"missing of 3 shards: 1 ({shards[1]}, not named)",
        "run the missing shards, then merge all of them",
    )
    assert not (tmp_path / "all.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["-o", "all.jsonl"], "missing argument 'SHARD...'"),
        (["out-*"], "missing option '--output' / '-o'"),
        (["none-*", "-o", "all.jsonl"], "none-* matches no file"),
        (["out-*", "-o", "all.parquet"], "all.parquet is in another format than out-00000-of-"),
        (["out-*", "-o", "old.jsonl"], "old.jsonl exists and is not made of these shards"),
        (["out-*", "-o", "out-00000-of-00002.jsonl", "--overwrite"], "out-00000-of-00002.jsonl is"),
    ],
)
def test_a_refusal_ends_with_2_and_two_lines(
    arguments: list[str],
    error: str,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path, 2)
    Path("old.jsonl").touch()
    shards = [path.name for path in sorted(tmp_path.glob("out-*"))]
    expanded = [name for word in arguments for name in (shards if word == "out-*" else [word])]
    ended = program("merge", *expanded)
    assert ended.code == 2
    assert ended.error_and_hint[0].startswith(error)


def test_an_old_output_is_replaced_with_overwrite(program: Program, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, 2)
    output = tmp_path / "all.jsonl"
    output.touch()
    assert program("merge", *shards, "-o", output, "--overwrite").code == 0
    assert [json.loads(line) for line in output.read_bytes().splitlines()] == output_rows(range(23))


@pytest.fixture(scope="module")
def large_shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = shard_path(tmp_path_factory.mktemp("shard"), 0, 1, ".jsonl.gz")
    return write_shard(path, 0, 1, num_job_rows=200_000)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, -signal.SIGINT)]
)
def test_a_signal_stops_a_merge_and_leaves_nothing(
    number: signal.Signals, code: int, large_shard: Path, tmp_path: Path
) -> None:
    process = start("merge", large_shard, "-o", tmp_path / "all.jsonl.gz")
    while not any(path.suffix == ".tmp" for path in tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, number)
    ended = wait(process)
    assert ended.code == code
    assert ended.err == f"stopped by {number.name}: run the same line again to merge\n"
    assert list(tmp_path.iterdir()) == []
