"""Which parameters apply, what is said of them, and what reaches the logs."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nanobatch.engine.factory import LoadedRunner
from nanobatch.engine.step_batch import PrefillBatch, StepBatch
from nanobatch.errors import OutputError
from nanobatch.job.run import run_job
from tests.job.null_jobs import PROMPTS, null_config, read_rows, run_null, write_lines
from tests.null_model import NullModelRunner, PendingNull, write_null_model


def test_row_over_flag_over_generation_config_over_default(tmp_path: Path) -> None:
    model = write_null_model(tmp_path / "model")
    settings = {"temperature": 0.3, "top_p": 0.8, "top_k": 40}
    (model / "generation_config.json").write_text(json.dumps(settings))
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "max_tokens": 2, "ignore_eos": True},
        {"prompt": "b"},
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    output = tmp_path / "out.jsonl"
    config = null_config(model, source, output, sampling={"max_tokens": 5, "top_p": 0.9})
    with _logs_of("nanobatch.job.run") as lines:
        run_null(config)
    assert lines == ["sampling: max_tokens 5, temperature 0.3, seed 0, top_p 0.9, top_k 40"]
    assert read_rows(output)[0]["completion_tokens"] == 2
    assert read_rows(output)[1]["completion_tokens"] <= 5


def test_without_a_model_a_loud_line_names_the_demo_model(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("")
    config = null_config(tmp_path, source, tmp_path / "out.jsonl")
    demo = type(config)(inputs=config.inputs, output=config.output)
    with _logs_of("nanobatch.job.run") as lines:
        run_null(demo)
    assert lines[0].startswith("NO --model GIVEN: the embedded demo model SmolLM2-135M-Instruct")
    assert lines[1].startswith("sampling: max_tokens room left, at most 4,096, temperature 1")


def test_max_tokens_is_clipped_to_the_room_left(null_model: Path, tmp_path: Path) -> None:
    rows = [
        {"input_ids": [50] * length, "max_tokens": 10_000, "ignore_eos": True}
        for length in (2000, 2031, 2032, 2033, 2047)
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    output = tmp_path / "out.jsonl"
    run_null(null_config(null_model, source, output))
    completions = [row["completion_tokens"] for row in read_rows(output)]
    assert completions == [2048 - length for length in (2000, 2031, 2032, 2033, 2047)]


def test_no_tokens_wanted_is_an_empty_answer(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": "a", "max_tokens": 0}])
    output = tmp_path / "out.jsonl"
    assert run_null(null_config(null_model, source, output)).exit_code == 0
    [row] = read_rows(output)
    assert (row["status"], row["generated_text"], row["finish_reason"]) == ("ok", "", "length")


def test_batch_lines_are_answered_in_the_flat_shape(null_model: Path, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4}
    line = {"custom_id": "c1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    source = write_lines(tmp_path / "in.jsonl", [line])
    output = tmp_path / "out.jsonl"
    run_null(null_config(null_model, source, output, output_shape="flat"))
    [row] = read_rows(output)
    assert row["id"] == "c1"
    assert list(row)[:5] == ["row_index", "id", "sample_index", "status", "generated_text"]


def test_prompt_text_reaches_no_log_above_debug(null_model: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        *PROMPTS,
        {"prompt": "the secret word", "top_p": 9},
        {"custom_id": "x", "body": {"prompt": "the secret word", "odd": "the secret word"}},
        {"messages": [{"role": "user", "content": "the secret word"}]},
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    with _logs_of("") as lines:
        run_null(null_config(null_model, source, tmp_path / "out.jsonl"))
    assert any("odd" in line for line in lines)
    assert [line for line in lines if "secret" in line or "the answer of" in line] == []


def test_remote_outputs_are_refused_with_a_hint(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS[:1])
    config = null_config(null_model, source, tmp_path / "out.jsonl")
    remote = type(config)(inputs=config.inputs, output="s3://bucket/out.jsonl")
    with pytest.raises(OutputError) as caught:
        run_null(remote)
    assert caught.value.message == "s3://bucket/out.jsonl is remote; outputs are local files"
    assert caught.value.hint == "write to a local file and copy it"


def _noise_seeds(model: Path, source: Path, output: Path, run_seed: int) -> list[int]:
    """Run a job and return the noise seed of each row, in the order of admission."""
    seeds: list[int] = []

    class SeeingRunner(NullModelRunner):
        def launch(self, batch: StepBatch) -> PendingNull:
            if isinstance(batch, PrefillBatch):
                seeds.extend(assignment.noise_seed for assignment in batch.slot_assignments)
            return super().launch(batch)

    run_job(
        null_config(model, source, output, engine={"seed": run_seed}),
        load_runner=lambda *_: LoadedRunner(SeeingRunner(256), 1000, device_type="cpu"),
    )
    return seeds


def test_a_row_draws_its_seed_from_the_run_s_and_its_index(
    null_model: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "the same"},
        {"prompt": "the same"},
        {"prompt": "the same", "seed": 7},
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    first = _noise_seeds(null_model, source, tmp_path / "a.jsonl", 0)
    again = _noise_seeds(null_model, source, tmp_path / "b.jsonl", 0)
    other = _noise_seeds(null_model, source, tmp_path / "c.jsonl", 1)
    assert first == again
    assert len({*first, *other}) == 5, "two rows of each run differ; the third's seed is its own"
    assert first[2] == other[2] == 7


@contextmanager
def _logs_of(name: str) -> Iterator[list[str]]:
    """Collect the lines that a logger says at INFO and above inside the block."""
    logger, handler = logging.getLogger(name), _Collector(logging.INFO)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Collector(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
