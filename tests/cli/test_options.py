"""Every flag of `nanobatch run` reaches the job; those that exclude each other are refused."""

from pathlib import Path

import pytest

from nanobatch.job_config import Shard, StartOver
from tests.cli.configured import Configured


def test_without_flags_nothing_is_special(configured: Configured) -> None:
    job = configured("in.jsonl", "-o", "out.parquet")
    assert (job.inputs, job.output) == (("in.jsonl",), "out.parquet")
    assert (job.limit, job.shard, job.output_shape) == (None, None, None)
    assert (job.rows_per_part, job.window_rows, job.window_tokens) == (100_000, 32_768, 2**24)
    assert (job.stop_after_s, job.stop_after_errors) == (None, None)
    assert job.start_over == StartOver()
    assert job.sampling == {}
    assert (job.engine.long_prompts, job.engine.row_timeout_s) == ("error", None)


def test_what_a_run_takes_and_when_it_stops(configured: Configured) -> None:
    job = configured(
        *("a.jsonl", "b.jsonl", "-o", "out.jsonl", "--limit", "1000", "--shard", "3/16"),
        *("--stop-after", "7h30m", "--stop-after-errors", "50", "--window-tokens", "9000"),
        *("--output-shape", "openai", "--log-interval", "5m", "--n", "4"),
        *("--long-prompts", "truncate-middle", "--row-timeout", "90s"),
    )
    assert job.inputs == ("a.jsonl", "b.jsonl")
    assert job.output == "out-00003-of-00016.jsonl"
    assert (job.limit, job.shard) == (1000, Shard(index=3, num_shards=16))
    assert (job.stop_after_s, job.stop_after_errors) == (27_000.0, 50)
    assert (job.window_tokens, job.log_interval_s) == (9000, 300.0)
    assert (job.output_shape, job.sampling) == ("openai", {"n": 4})
    assert (job.engine.long_prompts, job.engine.row_timeout_s) == ("truncate-middle", 90.0)


def test_part_files_have_as_many_rows_as_asked_for(configured: Configured) -> None:
    job = configured("in.jsonl", "-o", "parts/", "--rows-per-part", "500", "--shard", "0/2")
    assert (job.output, job.rows_per_part) == ("parts-00000-of-00002/", 500)


@pytest.mark.parametrize(
    ("flags", "start_over"),
    [
        (["--overwrite"], StartOver(overwrite=True)),
        (["--restart"], StartOver(restart=True)),
        (["--overwrite", "--restart"], StartOver(overwrite=True, restart=True)),
        (["--retry-errors"], StartOver(retry_errors=True)),
        (
            ["--retry-errors", "--repair-journal"],
            StartOver(retry_errors=True, repair_journal=True),
        ),
        (["--overwrite", "--repair-journal"], StartOver(overwrite=True, repair_journal=True)),
    ],
)
def test_how_a_run_starts_over(
    flags: list[str], start_over: StartOver, configured: Configured
) -> None:
    assert configured("in.jsonl", "-o", "out.jsonl", *flags).start_over == start_over


@pytest.mark.parametrize("written", ["\t", r"\t"])
def test_a_tab_is_a_tab_however_it_is_written(written: str, configured: Configured) -> None:
    assert configured("in.csv", "-o", "out.jsonl", "--delimiter", written).delimiter == "\t"


def test_the_shard_of_an_array_task_comes_from_slurm(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "5")
    job = configured("in.jsonl", "-o", "out.jsonl", "--shard", "auto/8")
    assert (job.shard, job.output) == (Shard(index=5, num_shards=8), "out-00005-of-00008.jsonl")


ONE = "give one"
NEEDS_FILE = "name an output file"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            ["in.jsonl", "-o", "o.jsonl", "--restart", "--retry-errors"],
            "--restart and --retry-errors exclude each other: one discards the journal, "
            "the other needs it",
            ONE,
        ),
        (
            ["in.jsonl", "-o", "o.jsonl", "--restart", "--repair-journal"],
            "--restart and --repair-journal exclude each other: one discards the journal, "
            "the other needs it",
            ONE,
        ),
        (
            ["in.jsonl", "-o", "o.jsonl", "--overwrite", "--retry-errors"],
            "--overwrite and --retry-errors exclude each other: one begins anew, "
            "the other keeps the rows that are ok",
            ONE,
        ),
        (
            ["in.jsonl", "-o", "-", "--restart"],
            "--restart and -o - exclude each other: standard output has no journal",
            NEEDS_FILE,
        ),
        (
            ["in.jsonl", "-o", "-", "--shard", "0/2"],
            "--shard and -o - exclude each other: shards are files that `nanobatch merge` joins",
            NEEDS_FILE,
        ),
        (
            ["a.jsonl", "-", "-o", "o.jsonl", "--shard", "0/2"],
            "--shard cannot split standard input: every shard would need all of it",
            "write it to a file first",
        ),
        (
            ["in.jsonl", "-o", "o.jsonl", "--rows-per-part", "5"],
            "--rows-per-part is for an output folder; the output is o.jsonl",
            "end the output's name with / to write part files",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    arguments: list[str], message: str, hint: str, configured: Configured
) -> None:
    ended = configured.ended(*arguments)
    assert ended.code == 2
    assert ended.error_and_hint == (message, hint)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--limit", "-1"], "limit is -1; it must be at least 0"),
        (["--limit", "few"], "invalid value for '--limit': "),
        (["--shard", "16/16"], "--shard is 16/16; 16 shards are numbered from 0 to 15"),
        (["--output-shape", "tall"], "--output-shape is 'tall'"),
        (["--stop-after", "soon"], "--stop-after is 'soon', which is no duration"),
        (["--stop-after", "0"], "--stop-after is 0; it must be above 0 seconds"),
        (["--row-timeout", "1w"], "--row-timeout is '1w', which is no duration"),
        (["--stop-after-errors", "0"], "stop_after_errors is 0; it must be at least 1"),
        (["--window-tokens", "0"], "--window-tokens is 0; it must be at least 1"),
        (["--long-prompts", "cut"], "--long-prompts is 'cut'"),
    ],
)
def test_a_value_out_of_bounds_is_refused(
    flags: list[str], message: str, configured: Configured, tmp_path: Path
) -> None:
    ended = configured.ended("in.jsonl", "-o", tmp_path / "out.jsonl", *flags)
    assert ended.code == 2
    assert ended.error_and_hint[0].startswith(message)


def test_part_files_without_rows_are_refused(configured: Configured) -> None:
    ended = configured.ended("in.jsonl", "-o", "parts/", "--rows-per-part", "0")
    assert ended.error_and_hint[0] == "rows_per_part is 0; it must be at least 1"
