"""Jobs whose rows are OpenAI's batch lines."""

import json
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import OutputError
from nanobatch.job import recorder
from nanobatch.job.feeder import PORTION_ROWS
from nanobatch.job.stop_signal import StopSignal
from tests.job.null_jobs import PROMPTS, StopAfter, null_config, read_rows, run_null, write_lines

CHAT = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4}
LINES: list[dict[str, Any]] = [
    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT},
    {"custom_id": "b", "url": "/v1/completions", "body": {"prompt": "the answer"}, "team": "x"},
    {"custom_id": "c", "url": "/v1/embeddings", "body": {"input": "the answer"}},
    {"id": 7, "prompt": "the answer of 7 is"},
]


def printed(
    monkeypatch: pytest.MonkeyPatch, model: Path, source: Path, **options: Any
) -> list[dict[str, Any]]:
    """Run a job on standard output and return its lines."""
    stream = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(stream))
    run_null(null_config(model, source, Path("-"), **options))
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_batch_lines_are_answered_in_openai_s_shape(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", LINES)
    output = tmp_path / "out.jsonl"
    assert run_null(null_config(null_model, source, output)).exit_code == 3
    chat, text, refused, flat = read_rows(output)
    assert [line["custom_id"] for line in (chat, text, refused, flat)] == ["a", "b", "c", "7"]
    assert chat["response"]["body"]["object"] == "chat.completion"
    assert text["response"]["body"]["object"] == "text_completion"
    assert flat["response"]["body"]["object"] == "text_completion"
    assert text["team"] == "x"
    assert refused["response"]["status_code"] == 400
    assert refused["error"]["code"] == "unsupported"
    assert refused["error"]["message"].startswith(f"{source}:3: url is ")


def test_flat_rows_first_are_answered_in_the_flat_shape(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", LINES[::-1])
    run_null(null_config(null_model, source, tmp_path / "out.jsonl"))
    assert [row["id"] for row in read_rows(tmp_path / "out.jsonl")] == ["7", "c", "b", "a"]


def test_a_run_that_was_stopped_gives_the_same_bytes(null_model: Path, tmp_path: Path) -> None:
    lines = [
        {"custom_id": str(n), "body": {"prompt": row["prompt"]}} for n, row in enumerate(PROMPTS)
    ]
    source = write_lines(tmp_path / "in.jsonl", lines)
    engine = {"max_num_seqs": 4, "enable_prefix_caching": False}
    whole = null_config(null_model, source, tmp_path / "whole.jsonl", engine=engine)
    run_null(whole)
    stopped = null_config(null_model, source, tmp_path / "stopped.jsonl", engine=engine)
    stop = StopSignal()
    assert run_null(stopped, stop=stop, on_stats=StopAfter(10, stop)).exit_code != 0
    run_null(stopped)
    assert Path(whole.output).read_bytes() == Path(stopped.output).read_bytes()


def test_the_shape_can_be_chosen(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", LINES)
    run_null(null_config(null_model, source, tmp_path / "a.jsonl", output_shape="flat"))
    assert read_rows(tmp_path / "a.jsonl")[0]["id"] == "a"
    source = write_lines(tmp_path / "flat.jsonl", PROMPTS[:2])
    run_null(null_config(null_model, source, tmp_path / "b.jsonl", output_shape="openai"))
    first, _ = read_rows(tmp_path / "b.jsonl")
    assert (first["custom_id"], first["score"]) == ("row-0", 0.0)


def test_openai_s_shape_in_parquet_is_refused_before_anything_is_loaded(
    null_model: Path, tmp_path: Path
) -> None:
    config = null_config(
        null_model, tmp_path / "nowhere.jsonl", tmp_path / "out.parquet", output_shape="openai"
    )
    with pytest.raises(OutputError, match="a Parquet output has flat rows") as caught:
        run_null(config)
    assert caught.value.exit_code == 2


def test_on_standard_output_the_first_parsable_row_decides(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "in.jsonl", LINES)
    source.write_bytes(b"{\n" + source.read_bytes())
    found = printed(monkeypatch, null_model, source)
    assert sorted(line["custom_id"] or "" for line in found) == ["", "7", "a", "b", "c"]
    source.write_bytes(b"{\n" + json.dumps(LINES[3]).encode() + b"\n")
    found = printed(monkeypatch, null_model, source)
    assert sorted(line["error_code"] or "" for line in found) == ["", "invalid_json"]


def test_rows_that_cannot_be_parsed_are_printed_flat(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"{\n[]\n")
    found = printed(monkeypatch, null_model, tmp_path / "in.jsonl")
    assert [row["error_code"] for row in found] == ["invalid_json", "not_an_object"]


def test_many_rows_that_cannot_be_parsed_do_not_wait_for_ever(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MAX_WAITING_ROWS", 3)
    source = write_lines(tmp_path / "in.jsonl", LINES[:1])
    source.write_bytes(b"{\n" * PORTION_ROWS + source.read_bytes())
    found = printed(monkeypatch, null_model, source)
    assert [row["error_code"] for row in found] == [*["invalid_json"] * PORTION_ROWS, None]


def test_the_shape_on_standard_output_can_be_chosen(
    null_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "in.jsonl", LINES[:1])
    [row] = printed(monkeypatch, null_model, source, output_shape="flat")
    assert row["status"] == "ok"


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_every_sample_of_a_row_is_a_row(name: str, null_model: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "x", "prompt": "the answer", "n": 3, "temperature": 1.0, "note": "y"},
        {"id": 5},
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    run_null(null_config(null_model, source, tmp_path / name))
    found = [
        (row["row_index"], row["id"], row["sample_index"], row["status"], row.get("note"))
        for row in read_rows(tmp_path / name)
    ]
    assert found == [
        (0, "x", 0, "ok", "y"),
        (0, "x", 1, "ok", "y"),
        (0, "x", 2, "ok", "y"),
        (1, "5", 0, "error", None),
    ]


def test_samples_of_a_batch_line_are_choices(null_model: Path, tmp_path: Path) -> None:
    line = {"custom_id": "x", "body": {**CHAT, "n": 3}}
    source = write_lines(tmp_path / "in.jsonl", [line])
    run_null(null_config(null_model, source, tmp_path / "out.jsonl"))
    [answered] = read_rows(tmp_path / "out.jsonl")
    assert [choice["index"] for choice in answered["response"]["body"]["choices"]] == [0, 1, 2]
