"""What cannot be exported, and where it cannot go: refused with a hint, and nothing is written."""

import dataclasses
from pathlib import Path

import pytest

from nanobatch.errors import InputError, JournalError, OutputError, ResumeMismatchError
from nanobatch.io.journal_segment import segment_path
from nanobatch.job.export import export_partial
from nanobatch.job.manifest import manifest_path
from nanobatch.job_config import JobConfig
from tests.job.null_jobs import PROMPTS, null_config, read_rows, run_null, write_lines
from tests.job.test_export import run_until, small_steps


@pytest.fixture
def stopped(null_model: Path, tmp_path: Path) -> JobConfig:
    """A job that was stopped with about ten finished rows."""
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = small_steps(null_model, source, tmp_path / "out.jsonl")
    run_until(config, 10)
    return config


def test_a_complete_output_needs_no_export(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    config = null_config(null_model, source, tmp_path / "out.jsonl")
    run_null(config)
    with pytest.raises(OutputError) as caught:
        export_partial(config.output, str(tmp_path / "part.jsonl"))
    assert caught.value.message == f"{config.output} is complete"
    assert caught.value.hint == "use it as it is: a complete output needs no export"
    kept = dataclasses.replace(config, output=str(tmp_path / "kept.jsonl"), keep_journal=True)
    run_null(kept)
    export_partial(kept.output, str(tmp_path / "part.jsonl"))
    assert read_rows(tmp_path / "part.jsonl") == read_rows(tmp_path / "kept.jsonl")


def test_nothing_is_exported_of_what_is_no_job(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nothing is known of "):
        export_partial(str(tmp_path / "out.jsonl"), str(tmp_path / "part.jsonl"))


def test_shards_are_exported_one_by_one(stopped: JobConfig, tmp_path: Path) -> None:
    shard = tmp_path / "out-00001-of-00002.jsonl.nanobatch"
    stopped.journal_dir.rename(shard)
    with pytest.raises(OutputError) as caught:
        export_partial(stopped.output, str(tmp_path / "part.jsonl"))
    assert caught.value.message == f"{stopped.output} is split into 2 shards"
    assert caught.value.hint == f"export each by its own name: {str(shard)[:-10]}"


def test_a_journal_without_a_manifest_says_so(stopped: JobConfig, tmp_path: Path) -> None:
    manifest_path(stopped.journal_dir).unlink()
    with pytest.raises(OutputError, match="has no manifest"):
        export_partial(stopped.output, str(tmp_path / "part.jsonl"))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("out.jsonl", "is the job's own output"),
        ("in.jsonl", "is an input"),
        ("out.jsonl.nanobatch/part.jsonl", "lies in the job's journal"),
        ("there.jsonl", "exists"),
        ("part.jsonl/", "is a folder"),
        ("folder.jsonl", "is a folder"),
        ("part.txt", "has the suffix '.txt'"),
        ("other.jsonl", "is the output of a job"),
    ],
)
def test_a_file_that_may_not_be_written_is_refused(
    stopped: JobConfig, tmp_path: Path, file: str, message: str
) -> None:
    (tmp_path / "there.jsonl").write_text("mine")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "other.jsonl.nanobatch").mkdir()
    with pytest.raises(OutputError) as caught:
        export_partial(stopped.output, f"{tmp_path}/{file}")
    assert message in caught.value.message
    assert caught.value.hint is not None
    assert (tmp_path / "there.jsonl").read_text() == "mine"
    assert not Path(stopped.output).exists()


def test_remote_files_are_refused(stopped: JobConfig) -> None:
    with pytest.raises(OutputError, match="is remote"):
        export_partial(stopped.output, "s3://bucket/part.jsonl")


def test_a_file_that_is_there_is_replaced_only_when_asked(
    stopped: JobConfig, tmp_path: Path
) -> None:
    (tmp_path / "there.jsonl").write_text("mine")
    num_rows = export_partial(
        stopped.output, str(tmp_path / "there.jsonl"), overwrite=True
    ).num_rows
    assert len(read_rows(tmp_path / "there.jsonl")) == num_rows >= 10


def test_a_changed_input_is_refused_and_no_file_appears(stopped: JobConfig, tmp_path: Path) -> None:
    file = tmp_path / "part.jsonl"
    changed = [{**row, "prompt": str(row["prompt"]).upper()} for row in PROMPTS]
    write_lines(tmp_path / "in.jsonl", changed)
    with pytest.raises(ResumeMismatchError, match=r"in\.jsonl:1 has changed"):
        export_partial(stopped.output, str(file))
    write_lines(tmp_path / "in.jsonl", PROMPTS[:4])
    with pytest.raises(ResumeMismatchError, match="finished rows are not in the inputs any more"):
        export_partial(stopped.output, str(file))
    (tmp_path / "in.jsonl").unlink()
    with pytest.raises(InputError, match="does not exist"):
        export_partial(stopped.output, str(file))
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_damage_in_the_middle_of_the_journal_is_named(stopped: JobConfig, tmp_path: Path) -> None:
    segment = segment_path(stopped.journal_dir, 1)
    content = bytearray(segment.read_bytes())
    content[40] ^= 1
    segment.write_bytes(bytes(content))
    with pytest.raises(JournalError, match="is damaged at byte 20 ") as caught:
        export_partial(stopped.output, str(tmp_path / "part.jsonl"))
    assert "--repair-journal" in str(caught.value.hint)
