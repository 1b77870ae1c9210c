"""`nanobatch bench`: what is refused, and one whole run with its lines and its table."""

import json
from pathlib import Path

import pytest

from nanobatch.cli.bench_plan import (
    choose_max_model_len,
    custom_shape,
    parse_engines,
    parse_vllm_options,
)
from nanobatch.errors import ConfigError
from nanobatch.models.source import read_model_config, resolve_model
from tests.bench.machines import small_workload
from tests.cli.program import Program
from tests.null_model import write_null_model

SMOKE = ("--random-weights", "smoke", "--device", "cpu")


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["nanoo"], "no such workload: nanoo", "did you mean nano?"),
        ([], "no workload is named", "workloads are nano, "),
        (["x.jsonl"], "x.jsonl does not exist", ""),
        (["nano", "--input-len", "5"], "nano has lengths of its own", "not both"),
        (["nano", "--engine", "vlm"], "--engine vlm: no such engine", "did you mean vllm?"),
        (["nano", "--engine", ","], "--engine names none", "engines are nanobatch"),
        (["nano", "--engine", "vllm"], "vllm is not installed here", "pip install vllm"),
        (["nano", "--plot", "x.pdf"], "must end in .svg or .png", ""),
        (["nano", "--repeats", "0"], "--repeats is 0; it must be at least 1", ""),
        (["nano", "--warmup", "-1"], "--warmup is -1; it must be at least 0", ""),
        (["nano", "--json", "no/where.jsonl"], "there is no folder no", ""),
        (["nano", "--max-model-len", "500"], "nano needs 2,0", ""),
        (["--input-len", "9:1"], "--input-len is 9:1; lengths go upwards from 1", ""),
        (["nano", "--vllm-arg", "x"], "--vllm-arg is 'x'", "max_num_seqs=1024"),
        (["nano", "--max-num-seqs", "0"], "max_num_seqs is 0; it must be at least 1", ""),
        (["nano", "--dtype", "int8"], "--dtype is 'int8'", "bfloat16"),
    ],
)
def test_a_refusal_is_two_lines_and_2(
    arguments: list[str],
    error: str,
    hint: str,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = program("bench", *arguments, *SMOKE)
    assert ended.code == 2
    assert error in ended.error_and_hint[0]
    assert hint in ended.error_and_hint[1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--random-weights", "9b"], "--random-weights is '9b'"),
        (["--random-weights", "smoke", "-m", "x"], "--model and --random-weights exclude"),
        (["--save-checkpoint", "x"], "--save-checkpoint is for --random-weights"),
        (["--random-weights", "smoke", "--save-checkpoint", "."], "is not empty"),
        (["-m", "./nowhere"], "no such model folder: ./nowhere"),
    ],
)
def test_a_model_that_cannot_be_is_refused(
    arguments: list[str],
    error: str,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    ended = program("bench", "cpu", *arguments)
    assert ended.code == 2
    assert error in ended.error_and_hint[0]


def test_a_bad_row_of_a_file_is_named(program: Program, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x"}\n{"prompt": ""}\n')
    ended = program("bench", source, *SMOKE)
    assert ended.code == 2
    assert f"{source}:2: " in ended.error_and_hint[0]


def test_engines_are_named_by_commas_or_one_by_one() -> None:
    assert parse_engines(["vllm,nanobatch", "vllm"]) == ("vllm", "nanobatch")


def test_arguments_of_vllm_are_json_or_text() -> None:
    texts = ["max_num_seqs=1024", "enforce_eager=true", "quantization=fp8"]
    assert parse_vllm_options(texts) == {
        "max_num_seqs": 1024,
        "enforce_eager": True,
        "quantization": "fp8",
    }


def test_no_option_of_its_own_means_no_custom_workload() -> None:
    nothing = dict.fromkeys(
        ("input_len", "output_len", "num_prompts", "prefix_len", "num_prefixes")
    )
    assert custom_shape(**nothing, seed=0) is None
    shape = custom_shape(**{**nothing, "num_prompts": 3}, seed=7)  # type: ignore[arg-type]
    assert shape is not None
    assert (shape.num_prompts, shape.input_lens.low, shape.seed) == (3, 512, 7)


def test_engines_are_started_for_what_the_workloads_need(tmp_path: Path) -> None:
    model_config = read_model_config(resolve_model(str(write_null_model(tmp_path, context=8192))))
    workloads = [small_workload()]
    assert choose_max_model_len(workloads, model_config, asked=None) == 4096
    assert choose_max_model_len(workloads, model_config, asked=60) == 60
    with pytest.raises(ConfigError, match=r"custom needs 4\d tokens; --max-model-len is 20"):
        choose_max_model_len(workloads, model_config, asked=20)


@pytest.mark.slow
def test_a_run_prints_a_json_line_for_each_engine_and_a_table(
    program: Program, tmp_path: Path
) -> None:
    ended = program(
        *("bench", *SMOKE, "--engine", "nanobatch,transformers"),
        *("--num-prompts", "6", "--input-len", "5:9", "--output-len", "3", "--prefix-len", "32"),
        *("--repeats", "2", "--json", tmp_path / "log.jsonl", "--profile", tmp_path / "traces"),
    )
    assert ended.code == 0, ended.err
    records = [json.loads(line) for line in ended.out.splitlines()]
    assert [record["engine"] for record in records] == ["nanobatch", "transformers"]
    assert [len(record["repeats_s"]) for record in records] == [2, 2]
    assert {record["num_output_tokens"] for record in records} == {18}
    assert records[0]["prefix_hit_rate"] > 0.6
    assert (tmp_path / "log.jsonl").read_bytes() == ended.out
    assert "of limit" in ended.err
    assert "operations on the CPU" in ended.err
    assert len(list((tmp_path / "traces").iterdir())) == 2


@pytest.mark.slow
def test_an_engine_that_cannot_start_ends_with_its_reason(program: Program, tmp_path: Path) -> None:
    """The null model has no weights at all."""
    ended = program("bench", "cpu", "-m", write_null_model(tmp_path), "--device", "cpu")
    assert ended.code == 2
    assert ended.out == b""
    assert "error: " in ended.err
    assert "holds no .safetensors file" in ended.err
