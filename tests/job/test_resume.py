"""Runs that were stopped, killed or finished, and what the same line does then."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from nanobatch.engine.factory import LoadedRunner
from nanobatch.errors import (
    JournalError,
    ModelError,
    OutputError,
    ResumeMismatchError,
)
from nanobatch.job.run import JobResult, run_job
from nanobatch.job.stats import JobStats, Phase
from nanobatch.job.stop_signal import StopSignal
from tests.job.null_jobs import (
    PROMPTS,
    StopAfter,
    null_config,
    read_rows,
    run_null,
    without_cached_tokens,
    write_lines,
)


def test_a_stopped_run_continues_to_the_same_output(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    whole, parts = tmp_path / "whole.parquet", tmp_path / "parts.parquet"
    run_null(null_config(null_model, source, whole))
    config = null_config(null_model, source, parts, engine={"max_num_seqs": 4})
    num_done = []
    for num_rows in (5, 20):
        stop = StopSignal()
        result = run_null(config, stop=stop, on_stats=StopAfter(num_rows, stop))
        assert result.exit_code == 75
        assert result.stats is not None
        num_done.append(result.stats.num_rows_done)
        assert not parts.exists()
    last = run_null(config)
    assert last.exit_code == 0
    assert last.stats is not None
    assert last.stats.num_rows_resumed == num_done[-1] > num_done[0]
    assert without_cached_tokens(read_rows(parts)) == without_cached_tokens(read_rows(whole))
    assert not config.journal_dir.exists()


def test_a_complete_output_leaves_nothing_to_do_and_keeps_its_exit_code(
    null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}, {"prompt": ""}])
    config = null_config(null_model, source, tmp_path / "out.jsonl")
    assert run_null(config).exit_code == 3
    written = Path(config.output).stat().st_mtime_ns
    again = run_null(config)
    assert (again.exit_code, again.stats, again.num_rows) == (3, None, 2)
    assert Path(config.output).stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"sampling": {"temperature": 0.5, "max_tokens": 12}},
            r"sampling.temperature \(0.0 before, 0.5 now\)",
        ),
        ({"engine": {"seed": 7}}, r"seed \(0 before, 7 now\)"),
        ({"rows": {"system": "Be brief."}}, r"system \(null before, .Be brief.. now\)"),
    ],
)
def test_another_job_on_the_same_output_is_refused_by_name(
    change: dict[str, object], named: str, null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS[:4])
    output = tmp_path / "out.jsonl"
    run_null(null_config(null_model, source, output))
    with pytest.raises(ResumeMismatchError, match=rf"another job: {named} differs"):
        run_null(null_config(null_model, source, output, **change))


def test_batch_limits_may_change_when_a_run_is_continued(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 4})
    stop = StopSignal()
    run_null(config, stop=stop, on_stats=StopAfter(5, stop))
    wider = dataclasses.replace(config.engine, max_num_seqs=32, block_size=8, num_kv_blocks=999)
    assert run_null(dataclasses.replace(config, engine=wider)).exit_code == 0


def test_a_changed_input_is_refused_when_a_run_is_continued(
    null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 4})
    stop = StopSignal()
    run_null(config, stop=stop, on_stats=StopAfter(5, stop))
    source.write_bytes(source.read_bytes().replace(b"answer of 0", b"answer of 9"))
    with pytest.raises(ResumeMismatchError, match=r"inputs \(in.jsonl: its content\) differs"):
        run_null(config)


def test_an_output_without_a_manifest_is_refused(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS[:2])
    output = tmp_path / "out.jsonl"
    output.write_text("precious")
    with pytest.raises(OutputError, match="not the result of a finished run"):
        run_null(null_config(null_model, source, output))
    assert output.read_text() == "precious"


def test_a_run_killed_between_rename_and_summary_is_finished_from_its_journal(
    null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = null_config(null_model, source, tmp_path / "out.jsonl", keep_journal=True)
    run_null(config)
    expected = read_rows(Path(config.output))
    config.summary_path.unlink()
    again = run_null(config)
    assert again.exit_code == 0
    assert again.stats is not None
    assert again.stats.num_rows_resumed == len(PROMPTS)
    assert read_rows(Path(config.output)) == expected


def test_a_damaged_journal_is_refused_with_its_offset(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 4})
    stop = StopSignal()
    run_null(config, stop=stop, on_stats=StopAfter(20, stop))
    segment = next(config.journal_dir.glob("*.journal"))
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(JournalError, match="damaged at byte"):
        run_null(config)


def test_a_second_run_on_the_same_output_is_refused(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 4})
    refusals: list[str] = []

    def run_again(stats: JobStats) -> None:
        if stats.phase is Phase.RUNNING and not refusals:
            with pytest.raises(OutputError) as caught:
                run_null(config)
            refusals.append(caught.value.message)

    assert run_null(config, on_stats=run_again).exit_code == 0
    assert [message.partition(" on ")[0] for message in refusals] == [
        f"another run writes to {config.output} (process {os.getpid()}"
    ]


def test_a_finished_row_that_changed_unseen_is_found_by_its_payload(
    null_model: Path, tmp_path: Path
) -> None:
    """The change lies between the blocks that are sampled when a run begins."""
    padding = "x" * 1000
    rows = [{"prompt": f"the answer of {index} is", "note": padding} for index in range(3000)]
    source = write_lines(tmp_path / "in.jsonl", rows)
    config = null_config(
        null_model, source, tmp_path / "out.jsonl", sampling={"max_tokens": 1, "temperature": 0.0}
    )
    stop = StopSignal()
    run_null(config, stop=stop, on_stats=StopAfter(1000, stop))
    changed = source.read_bytes().replace(b"the answer of 120 is", b"the answer of 999 is")
    assert len(changed) == source.stat().st_size
    source.write_bytes(changed)
    with pytest.raises(ResumeMismatchError) as caught:
        run_null(config)
    assert caught.value.message == f"{source}:121 has changed since the run that finished it"


def test_a_finished_run_leaves_the_output_and_its_summary(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    folder = tmp_path / "new" / "folder"
    run_null(null_config(null_model, source, folder / "out.jsonl"))
    assert sorted(path.name for path in folder.iterdir()) == ["out.jsonl", "out.jsonl.summary.json"]
    kept = null_config(null_model, source, folder / "kept.jsonl", keep_journal=True)
    run_null(kept)
    assert kept.journal_dir.is_dir()
    summary = json.loads(kept.summary_path.read_text())
    assert {"rows", "seconds", "versions", "hardware", "configuration", "fingerprint"} <= set(
        summary
    )
    assert summary["seconds"]["running"] > 0
    assert summary["versions"]["nanobatch"] == "0.1.0"
    assert summary["configuration"]["block_size"] == 16


def test_another_pipe_on_a_finished_output_is_refused(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out.jsonl"
    config = null_config(null_model, Path("-"), output)

    def run_with(text: str) -> JobResult:
        (tmp_path / "stdin").write_text(text)
        with (tmp_path / "stdin").open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            return run_null(config)

    assert run_with('{"prompt": "monday"}\n').num_rows == 1
    again = run_with('{"prompt": "monday"}\n')
    assert (again.exit_code, again.stats) == (0, None)
    for other in ('{"prompt": "tuesday"}\n{"prompt": "more"}\n', ""):
        with pytest.raises(ResumeMismatchError, match="answers another standard input"):
            run_with(other)
    assert not config.journal_dir.exists()


def test_a_run_that_failed_before_its_first_row_does_not_hold_up_the_corrected_one(
    null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = null_config(null_model, source, tmp_path / "out.jsonl")

    def fail_to_load(*_arguments: object) -> LoadedRunner:
        raise ModelError("the weights are damaged")

    with pytest.raises(ModelError):
        run_job(config, load_runner=fail_to_load)
    changed = dataclasses.replace(config, sampling={"temperature": 0.0, "max_tokens": 3})
    assert run_null(changed).exit_code == 0


def test_lone_surrogates_are_counted_over_all_runs(null_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "half \\ud83d", "max_tokens": 2}\n' * 30)
    config = null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 4})
    stop = StopSignal()
    run_null(config, stop=stop, on_stats=StopAfter(10, stop))
    result = run_null(config)
    assert result.stats is not None
    assert result.stats.num_rows_resumed >= 10
    assert result.stats.num_surrogates == 30


def test_a_refused_run_leaves_the_status_of_the_stopped_one(
    null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_num_seqs": 4})
    stop = StopSignal()
    run_null(config, stop=stop, on_stats=StopAfter(10, stop))
    status = (config.journal_dir / "status.json").read_bytes()
    phases: list[Phase] = []
    changed = dataclasses.replace(config, sampling={"temperature": 0.5, "max_tokens": 12})
    with pytest.raises(ResumeMismatchError):
        run_null(changed, on_stats=lambda stats: phases.append(stats.phase))
    assert (config.journal_dir / "status.json").read_bytes() == status
    assert phases == []
