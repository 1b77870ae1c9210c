"""What makes two runs the same job, and what never does."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import ResumeMismatchError
from nanobatch.job.plan import make_plan
from nanobatch.job.same_job import require_same_job
from tests.job.null_jobs import null_config, write_lines


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl", [{"prompt": "a", "b": 1}] * 3)


def fingerprint(model: Path, source: Path, **options: Any) -> dict[str, object]:
    output = options.pop("output", source.parent / "out.jsonl")
    return make_plan(null_config(model, source, output, **options)).fingerprint


def changed_keys(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    assert one.keys() == other.keys()
    return [key for key in one if one[key] != other[key]]


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"sampling": {"temperature": 0.5}}, ["sampling.max_tokens", "sampling.temperature"]),
        ({"sampling": {"temperature": 0.0, "max_tokens": 12, "top_k": 4}}, ["sampling.top_k"]),
        ({"sampling": {"temperature": 0.0, "max_tokens": 12, "stop": ["a"]}}, ["sampling.stop"]),
        ({"engine": {"seed": 1}}, ["seed"]),
        ({"engine": {"dtype": "float32"}}, ["dtype"]),
        ({"engine": {"max_model_len": 99}}, ["max_model_len"]),
        ({"engine": {"chat_template": "{{ messages }}"}}, ["chat_template"]),
        ({"engine": {"chat_template_kwargs": {"a": 1}}}, ["chat_template_kwargs"]),
        ({"engine": {"return_logprobs": True}}, ["logprobs"]),
        ({"include_token_ids": True}, ["token_ids"]),
        ({"rows": {"template": "{{ prompt }}"}}, ["template"]),
        ({"rows": {"prompt_column": "prompt"}}, ["prompt_column"]),
        ({"rows": {"id_column": "b"}}, ["id_column"]),
        ({"rows": {"system": "x"}}, ["system"]),
        ({"rows": {"raw": True}}, ["raw"]),
        ({"rows": {"strict": True}}, ["strict"]),
        ({"rows": {"allow_duplicate_ids": True}}, ["allow_duplicate_ids"]),
    ],
)
def test_what_can_change_an_answer_makes_another_job(
    options: dict[str, Any], keys: list[str], null_model: Path, source: Path
) -> None:
    before = fingerprint(null_model, source)
    assert changed_keys(before, fingerprint(null_model, source, **options)) == keys


@pytest.mark.parametrize(
    "options",
    [
        {"engine": {"device": "cpu"}},
        {"engine": {"block_size": 8, "max_num_seqs": 3, "max_num_batched_tokens": 64}},
        {"engine": {"num_kv_blocks": 77, "kv_cache_memory_bytes": 1 << 30}},
        {"engine": {"gpu_memory_utilization": 0.5, "enable_prefix_caching": False}},
        {"engine": {"run_ahead": 2, "prior_output_tokens": 9, "trust_remote_code": True}},
        {"window_rows": 7, "window_tokens": 99, "show_progress": False, "log_interval_s": 1.0},
        {"keep_journal": True, "max_errors": None, "columns": ("b",)},
        {"output": "elsewhere.parquet"},
    ],
)
def test_how_and_where_a_job_runs_never_counts(
    options: dict[str, Any], null_model: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    assert fingerprint(null_model, source, **options) == fingerprint(null_model, source)


def test_a_fingerprint_survives_json(null_model: Path, source: Path) -> None:
    rows = {"prompt_column": "prompt", "param_columns": ("temperature",)}
    source.write_text('{"prompt": "a", "temperature": 1}\n')
    stored = fingerprint(null_model, source, rows=rows, sampling={"stop": ("a", "b")})
    assert json.loads(json.dumps(stored)) == stored


def test_inputs_count_by_name_size_and_content_and_in_order(
    null_model: Path, source: Path, tmp_path: Path
) -> None:
    before = fingerprint(null_model, source)
    moved = tmp_path / "moved"
    moved.mkdir()
    same = Path(shutil.copy(source, moved / source.name))
    assert fingerprint(null_model, same) == before
    renamed = Path(shutil.copy(source, moved / "other.jsonl"))
    assert changed_keys(before, fingerprint(null_model, renamed)) == ["inputs"]
    same.write_bytes(source.read_bytes().replace(b'"a"', b'"b"'))
    assert changed_keys(before, fingerprint(null_model, same)) == ["inputs"]
    one_order = make_plan(null_config(null_model, [source, renamed], tmp_path / "out.jsonl"))
    other_order = make_plan(null_config(null_model, [renamed, source], tmp_path / "out.jsonl"))
    assert changed_keys(one_order.fingerprint, other_order.fingerprint) == ["inputs"]


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
    ],
)
def test_files_that_decide_an_answer_count(
    name: str, null_model: Path, source: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(null_model, tmp_path / "model"))
    before = fingerprint(model, source)
    path = model / name
    path.write_text(path.read_text() + " " if path.exists() else "{}")
    assert changed_keys(before, fingerprint(model, source)) == ["model"]


def test_other_files_in_the_models_folder_do_not_count(null_model: Path, tmp_path: Path) -> None:
    """People run jobs where the model lies: inputs, outputs and notes are then its neighbours."""
    model = Path(shutil.copytree(null_model, tmp_path / "model"))
    source = write_lines(model / "in.jsonl", [{"prompt": "a"}])
    before = fingerprint(model, source, output=model / "out.jsonl")
    for name in ("out.jsonl", "out.jsonl.summary.json", "README.md", "notes.txt", "prompts.txt"):
        (model / name).write_text("{}")
    (model / "out.jsonl.nanobatch").mkdir()
    (model / "tokenizer_old").mkdir()
    assert fingerprint(model, source, output=model / "out.jsonl") == before


def test_a_mismatch_names_every_key_that_differs() -> None:
    stored = {"a": 1, "b": 2, "gone": 3}
    require_same_job(stored, dict(stored), where="out.jsonl", hint="stop")
    with pytest.raises(ResumeMismatchError) as raised:
        require_same_job(stored, {"a": 1, "b": "x" * 30, "new": 4}, where="out.jsonl", hint="stop")
    assert raised.value.message == (
        "out.jsonl belongs to another job: "
        "b, gone (3 before, null now), new (null before, 4 now) differ"
    )
    assert raised.value.hint == "stop"
    with pytest.raises(ResumeMismatchError, match=r"another job: b \(2 before, 9 now\) differs$"):
        require_same_job(stored, {**stored, "b": 9}, where="out.jsonl", hint="stop")
    require_same_job(stored, {**stored, "b": 9}, where="out.jsonl", hint="stop", ignored=["b"])


@pytest.mark.parametrize(
    ("stored", "wanted", "named"),
    [
        ([{"name": "a", "bytes": 1}], [], "1 file before, 0 now"),
        ([{"name": "a", "bytes": 1}], [{"name": "b", "bytes": 1}], "a before, b now"),
        ([{"name": "a", "bytes": 1}], [{"name": "a", "bytes": 2}], "a: 1 bytes before, 2 now"),
        (
            [{"name": "a", "bytes": 1, "sample": "x"}],
            [{"name": "a", "bytes": 1, "sample": "y"}],
            "a: its content",
        ),
    ],
)
def test_a_changed_input_is_named_with_what_became_of_it(
    stored: list[object], wanted: list[object], named: str
) -> None:
    with pytest.raises(ResumeMismatchError) as raised:
        require_same_job({"inputs": stored}, {"inputs": wanted}, where="out.jsonl", hint="stop")
    assert raised.value.message == f"out.jsonl belongs to another job: inputs ({named}) differs"


def test_a_changed_model_is_named_by_its_files() -> None:
    before = {"model": {"config.json": "1", "model.safetensors": "2"}}
    after = {"model": {"config.json": "1", "model.safetensors": "3"}}
    with pytest.raises(ResumeMismatchError, match=r"another job: model \(model.safetensors\) "):
        require_same_job(before, after, where="out.jsonl", hint="stop")
