"""The shards of a split output: found by their names, added up."""

from dataclasses import replace
from pathlib import Path

import pytest

from nanobatch.cli.shard_option import shard_output
from nanobatch.errors import OutputError
from nanobatch.job.observe import JobState, ObservedJob
from nanobatch.job.observe_shards import ObservedShards, observe_output
from nanobatch.job.stats import Phase
from nanobatch.job_config import Shard
from tests.job.test_observe import NOW_S, begin, touch_all, write_summary
from tests.job.test_status import STATS


def shard_name(output: str, index: int, num_shards: int = 4) -> str:
    return shard_output(output, Shard(index=index, num_shards=num_shards))


def write_shard(folder: Path, name: str, *, age_s: float, reason: str | None = None) -> None:
    """Write the status of one shard; with a reason it has stopped."""
    _, writer, journal = begin(folder, name=name)
    if reason is None:
        writer.update(STATS)
    else:
        writer.close(replace(STATS, phase=Phase.STOPPED), reason)
    touch_all(journal, NOW_S - age_s)


def observe(folder: Path, output: str = "out.jsonl") -> ObservedShards:
    observed = observe_output(str(folder / output), clock=lambda _folder: NOW_S)
    assert isinstance(observed, ObservedShards)
    return observed


@pytest.mark.parametrize("output", ["out.jsonl", "a.b.parquet", "out.jsonl.gz", "parts"])
def test_shards_are_found_by_the_names_that_runs_give_them(tmp_path: Path, output: str) -> None:
    write_shard(tmp_path, shard_name(output, 0), age_s=1)
    write_shard(tmp_path, shard_name(output, 2), age_s=500)
    write_summary(str(tmp_path / shard_name(output, 3)), NOW_S)
    write_shard(tmp_path, shard_name("other" + output, 1), age_s=1)
    shards = observe(tmp_path, output)
    assert shards.num_shards == 4
    assert shards.missing == [1]
    assert {index: job.state for index, job in shards.jobs.items()} == {
        0: JobState.RUNNING,
        2: JobState.DEAD,
        3: JobState.FINISHED,
    }
    assert shards.jobs[2].output == str(tmp_path / shard_name(output, 2))


def test_the_sum_counts_all_shards_and_the_speed_of_those_that_run(tmp_path: Path) -> None:
    write_shard(tmp_path, shard_name("out.jsonl", 0), age_s=1)
    write_shard(tmp_path, shard_name("out.jsonl", 1), age_s=1)
    write_shard(tmp_path, shard_name("out.jsonl", 2), age_s=1, reason="SIGTERM")
    write_summary(str(tmp_path / shard_name("out.jsonl", 3)), NOW_S)
    total = observe(tmp_path).total
    assert total.state is JobState.RUNNING
    status = total.status
    assert (status.rows_done, status.rows_error, status.rows_total) == (255, 7, 288)
    assert (status.errors_by_code, status.eta_s) == ({"bad_row": 7}, 250.0)
    assert (status.decode_tokens_per_s, status.prefill_tokens_per_s) == (1624.0, 6620.0)


def test_the_total_is_unknown_while_a_shard_has_not_begun(tmp_path: Path) -> None:
    write_summary(str(tmp_path / shard_name("out.jsonl", 0)), NOW_S)
    total = observe(tmp_path).total
    assert (total.state, total.status.rows_total) == (JobState.STOPPED, None)


def test_a_dead_shard_outweighs_stopped_ones_and_all_finished_is_finished(tmp_path: Path) -> None:
    names = [shard_name("out.jsonl", index, 2) for index in range(2)]
    write_shard(tmp_path, names[0], age_s=500)
    write_shard(tmp_path, names[1], age_s=500, reason="SIGTERM")
    assert observe(tmp_path).total.state is JobState.DEAD
    for name in names:
        write_summary(str(tmp_path / name), NOW_S)
    assert observe(tmp_path).total.state is JobState.FINISHED


def test_of_two_splits_the_one_that_changed_last_counts(tmp_path: Path) -> None:
    write_summary(str(tmp_path / shard_name("out.jsonl", 0, 8)), NOW_S)  # of 2026
    write_shard(tmp_path, shard_name("out.jsonl", 0, 2), age_s=1)
    status = tmp_path / "out-00000-of-00002.jsonl.nanobatch" / "status.json"
    status.write_text(status.read_text().replace('"updated_at": "20', '"updated_at": "30'))
    assert observe(tmp_path).num_shards == 2


def test_the_output_itself_comes_before_shards_of_its_name(tmp_path: Path) -> None:
    write_shard(tmp_path, shard_name("out.jsonl", 0), age_s=1)
    write_summary(str(tmp_path / "out.jsonl"), NOW_S)
    assert isinstance(observe_output(str(tmp_path / "out.jsonl")), ObservedJob)


@pytest.mark.parametrize("folder", [".", "missing"])
def test_an_output_that_nobody_wrote_is_an_error(tmp_path: Path, folder: str) -> None:
    output = str(tmp_path / folder / "out.jsonl")
    with pytest.raises(OutputError) as caught:
        observe_output(output)
    assert caught.value.message == (
        f"nothing is known of {output}: it has no journal and no summary"
    )
    assert caught.value.exit_code == 2
