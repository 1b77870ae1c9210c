"""What is refused before anything is loaded, downloaded or written."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import ConfigError, ModelError, OutputError
from nanobatch.job.plan import make_plan
from nanobatch.job_config import StartOver
from tests.job.null_jobs import null_config, write_lines


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", [{"prompt": "a"}])


def test_a_plan_says_what_applies_and_writes_nothing(
    null_model: Path, source: Path, tmp_path: Path
) -> None:
    config = null_config(
        null_model,
        source,
        tmp_path / "new" / "folder" / "out.jsonl",
        sampling={"temperature": 0.5, "stop": ["x"], "top_k": 0},
    )
    plan = make_plan(config)
    assert (plan.sampling.temperature, plan.sampling.stop, plan.sampling.top_k) == (
        0.5,
        ("x",),
        None,
    )
    assert plan.model_config.max_position_embeddings == 2048
    assert [one.path for one in plan.sources] == [str(source)]
    assert sorted(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_an_output_that_is_an_input_under_another_name_is_refused(
    link: Any, null_model: Path, source: Path, tmp_path: Path
) -> None:
    link(source, tmp_path / "other.jsonl")
    with pytest.raises(OutputError, match="is an input"):
        make_plan(null_config(null_model, source, tmp_path / "other.jsonl"))
    with pytest.raises(OutputError, match="is an input"):
        make_plan(null_config(null_model, tmp_path / "other.jsonl", source))


def test_an_input_in_the_folder_that_is_written_is_refused(
    null_model: Path, source: Path, tmp_path: Path
) -> None:
    """As a part file it would be written over, whether or not `--overwrite` is meant for others."""
    folder = tmp_path / "out.jsonl"
    folder.mkdir()
    part = source.rename(folder / "part-00000.jsonl")
    config = null_config(null_model, part, folder, start_over=StartOver(overwrite=True))
    with pytest.raises(OutputError, match=r"part-00000\.jsonl lies in .*out\.jsonl/"):
        make_plan(replace(config, output=f"{folder}/"))


@pytest.mark.parametrize("output", ["", "/", "./", "../", ".", "a/.."])
def test_an_output_without_a_name_of_its_own_is_refused(
    output: str, null_model: Path, source: Path
) -> None:
    config = null_config(null_model, source, source)
    with pytest.raises(OutputError, match="has no name of its own"):
        make_plan(replace(config, output=output))


def test_an_output_below_a_file_is_refused(null_model: Path, source: Path) -> None:
    with pytest.raises(OutputError, match="is not a folder"):
        make_plan(null_config(null_model, source, source / "out.jsonl"))


def test_an_output_that_is_a_folder_is_refused(
    null_model: Path, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.jsonl").mkdir()
    with pytest.raises(OutputError, match="is a folder"):
        make_plan(null_config(null_model, source, tmp_path / "out.jsonl"))


def test_a_folder_that_takes_no_files_is_refused(null_model: Path, source: Path) -> None:
    with pytest.raises(OutputError, match="cannot write in /proc"):
        make_plan(null_config(null_model, source, Path("/proc/out.jsonl")))


def test_a_bad_flag_is_refused_before_the_model_is_looked_for(source: Path, tmp_path: Path) -> None:
    """A model that has to be downloaded first would take an hour to say so."""
    nowhere, output = tmp_path / "nowhere", tmp_path / "out.jsonl"
    with pytest.raises(ConfigError, match="top_p is 2"):
        make_plan(null_config(nowhere, source, output, sampling={"top_p": 2.0}))
    with pytest.raises(ConfigError, match="--window-rows is 0"):
        make_plan(null_config(nowhere, source, output, window_rows=0))
    with pytest.raises(ModelError):
        make_plan(null_config(nowhere, source, output))


def test_a_context_beyond_the_models_is_refused(
    null_model: Path, source: Path, tmp_path: Path
) -> None:
    config = null_config(null_model, source, tmp_path / "out.jsonl", engine={"max_model_len": 2049})
    with pytest.raises(ConfigError, match=r"max_model_len is 2,049; the model's context is 2,048"):
        make_plan(config)
