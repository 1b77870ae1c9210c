"""`nanobatch status`: what a person and what a script see of a job."""

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

from nanobatch.cli.shard_option import shard_output
from nanobatch.job.stats import Phase
from nanobatch.job.status import StatusWriter, read_status, status_path
from nanobatch.job_config import Shard
from tests.cli.program import Program
from tests.job.test_observe import touch_all, write_summary
from tests.job.test_status import STATS


def begin(folder: Path, name: str = "out.parquet") -> tuple[str, StatusWriter, Path]:
    """Return a job's output, its status writer and its journal's folder."""
    journal = folder / f"{name}.nanobatch"
    journal.mkdir()
    return str(folder / name), StatusWriter(status_path(journal)), journal


def started_at(journal: Path) -> str | None:
    status = read_status(journal)
    assert status is not None
    return status.started_at


def test_a_running_job_is_shown_in_a_few_lines(program: Program, tmp_path: Path) -> None:
    output, writer, journal = begin(tmp_path)
    writer.update(STATS)
    ended = program("status", output)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.decode().splitlines() == [
        f"{output}: running",
        "  rows    61 of 72 done, 2 errors (2 bad_row); 10 from earlier runs",
        "  speed   0 rows/s, prefill 3,310 tok/s, decode 812 tok/s",
        "  left    about 4m10s",
        f"  run     process {os.getpid()} on {socket.gethostname()}, began {started_at(journal)}",
        "  model   org/model",
    ]


def test_while_a_model_loads_there_is_no_speed(program: Program, tmp_path: Path) -> None:
    output, writer, _ = begin(tmp_path)
    writer.update(replace(STATS, phase=Phase.LOADING, num_rows_total=None, eta_s=None))
    lines = program("status", output).out.decode().splitlines()
    assert lines[0] == f"{output}: running (loading model)"
    assert [line.split()[0] for line in lines[1:]] == ["rows", "run", "model"]
    assert lines[1] == (
        "  rows    61 done (50.0 % of the input), 2 errors (2 bad_row); 10 from earlier runs"
    )


def test_a_stopped_job_says_by_what_and_how_to_go_on(program: Program, tmp_path: Path) -> None:
    output, writer, _ = begin(tmp_path)
    writer.close(replace(STATS, phase=Phase.STOPPED), "SIGTERM")
    lines = program("status", output).out.decode().splitlines()
    assert lines[0] == f"{output}: stopped (SIGTERM)"
    assert lines[-1] == "  next    run the same line again to continue"


def test_a_dead_job_says_where_it_ran_and_how_to_go_on(program: Program, tmp_path: Path) -> None:
    output, writer, journal = begin(tmp_path)
    writer.update(STATS)
    touch_all(journal, tmp_path.stat().st_mtime - 12 * 60)
    lines = program("status", output).out.decode().splitlines()
    headline, _, age = lines[0].partition(" for ")
    assert headline == f"{output}: dead, no sign of life"
    assert age.startswith("12m")
    assert f"process {os.getpid()} on {socket.gethostname()}" in lines[2]
    assert lines[-1] == "  next    run the same line again to continue"


def test_a_finished_job_is_shown_without_its_journal(program: Program, tmp_path: Path) -> None:
    output = str(tmp_path / "out.jsonl")
    write_summary(output, 1e9)
    assert program("status", output).out.decode().splitlines() == [
        f"{output}: finished",
        "  rows    72 of 72 done, 1 error (1 bad_row); 9 from earlier runs",
        "  run     ended 2026-11-29T20:00:00+0000",
        "  model   org/model",
    ]


def test_json_is_one_object_with_everything(program: Program, tmp_path: Path) -> None:
    output, writer, _ = begin(tmp_path)
    writer.update(STATS)
    ended = program("status", output, "--json")
    assert ended.out.count(b"\n") == 1
    shown = json.loads(ended.out)
    assert (ended.code, shown["state"], shown["phase"]) == (0, "running", "running")
    assert (shown["rows_done"], shown["rows_error"], shown["rows_total"]) == (61, 2, 72)
    assert (shown["eta_s"], shown["output"], shown["pid"]) == (250.0, output, os.getpid())
    assert 0 <= shown["age_s"] < 30


def test_of_a_split_job_every_shard_and_the_sum_are_shown(program: Program, tmp_path: Path) -> None:
    def name(index: int) -> str:
        return shard_output("out.parquet", Shard(index=index, num_shards=6))

    begin(tmp_path, name(0))[1].update(STATS)
    begin(tmp_path, name(1))[1].close(replace(STATS, phase=Phase.STOPPED), "SIGTERM")
    write_summary(str(tmp_path / name(5)), 1e9)
    output = str(tmp_path / "out.parquet")
    assert program("status", output).out.decode().splitlines() == [
        f"{output}: running",
        "  00000  running            61 of 72 rows  2 errors  about 4m10s",
        "  00001  stopped (SIGTERM)  61 of 72 rows  2 errors",
        "  00005  finished           72 of 72 rows  1 error",
        "  2-4 of 6 have not begun",
        "  rows    194 done, 5 errors (5 bad_row); 29 from earlier runs",
        "  speed   0 rows/s, prefill 3,310 tok/s, decode 812 tok/s",
        "  model   org/model",
        "  next    run the lines of shards 1-4",
    ]
    shown = json.loads(program("status", output, "--json").out)
    assert (shown["state"], shown["rows_done"], shown["rows_total"]) == ("running", 194, None)
    assert (shown["num_shards"], shown["shards_missing"]) == (6, [2, 3, 4])
    assert [shard["state"] for shard in shown["shards"]] == ["running", "stopped", "finished"]


def test_when_all_shards_are_finished_merge_is_next(program: Program, tmp_path: Path) -> None:
    for index in range(2):
        name = shard_output("out.jsonl", Shard(index=index, num_shards=2))
        write_summary(str(tmp_path / name), 1e9)
    lines = program("status", tmp_path / "out.jsonl").out.decode().splitlines()
    assert lines[0] == f"{tmp_path / 'out.jsonl'}: finished"
    assert lines[3].startswith("  rows    144 of 144 done")
    assert lines[-1] == "  next    join the shards with `nanobatch merge`"


def test_an_output_of_which_nothing_is_known_is_refused(program: Program, tmp_path: Path) -> None:
    ended = program("status", tmp_path / "out.jsonl")
    assert ended.code == 2
    assert ended.error_and_hint == (
        f"nothing is known of {tmp_path / 'out.jsonl'}: it has no journal and no summary",
        "name the output as in `nanobatch run ... -o OUTPUT`",
    )
