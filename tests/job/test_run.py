"""Whole runs on the null model: rows in, rows out, resume, refusals."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nanobatch.errors import (
    ConfigError,
    InputError,
    ModelError,
    OutputError,
)
from nanobatch.job.stats import Phase
from tests.job.null_jobs import (
    PROMPTS,
    null_config,
    read_rows,
    run_null,
    write_lines,
)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_every_input_row_gives_one_output_row_in_input_order(
    suffix: str, null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS)
    output = tmp_path / f"out{suffix}"
    result = run_null(null_config(null_model, source, output, engine={"max_num_seqs": 7}))
    rows = read_rows(output)
    assert result.exit_code == 0
    assert [row["row_index"] for row in rows] == list(range(40))
    assert [row["id"] for row in rows] == [prompt["id"] for prompt in PROMPTS]
    assert [row["score"] for row in rows] == [prompt["score"] for prompt in PROMPTS]
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["finish_reason"] for row in rows} == {"stop", "length"}
    assert all(row["completion_tokens"] <= 12 for row in rows)
    assert len({row["generated_text"] for row in rows}) > 30


def test_a_bad_row_is_an_error_row_and_costs_its_neighbours_nothing(
    null_model: Path, tmp_path: Path
) -> None:
    good = write_lines(tmp_path / "good.jsonl", PROMPTS)
    lines = good.read_bytes().splitlines()
    lines[10:10] = [b'{"prompt": "cut off', b"", b"[1]", b'{"prompt": "hi", "top_p": 7}']
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_bytes(b"\n".join(lines))
    alone, together = tmp_path / "alone.jsonl", tmp_path / "together.jsonl"
    run_null(null_config(null_model, good, alone))
    result = run_null(null_config(null_model, mixed, together))
    rows = read_rows(together)
    errors = [row for row in rows if row["status"] == "error"]
    assert result.exit_code == 3
    assert [row["error_code"] for row in errors] == ["invalid_json", "not_an_object", "bad_params"]
    assert [row["row_index"] for row in errors] == [10, 11, 12]
    assert [row["error_message"].split(": ")[0] for row in errors] == [
        f"{mixed}:{line}" for line in (11, 13, 14)
    ]
    texts = [row["generated_text"] for row in rows if row["status"] == "ok"]
    assert texts == [row["generated_text"] for row in read_rows(alone)]


@pytest.mark.parametrize(("max_errors", "exit_code"), [(0, 3), (1, 3), (2, 0), (None, 0)])
def test_allowed_error_rows_leave_the_exit_code_at_zero(
    max_errors: int | None, exit_code: int, null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"prompt": ""}, {"prompt": 1}, {"prompt": "a"}])
    config = null_config(null_model, source, tmp_path / "out.jsonl", max_errors=max_errors)
    assert run_null(config).exit_code == exit_code


def test_no_rows_give_a_valid_output_and_load_no_model(null_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n  \n")
    output = tmp_path / "out.parquet"
    phases: list[Phase] = []
    result = run_null(
        null_config(null_model, source, output), on_stats=lambda stats: phases.append(stats.phase)
    )
    assert result.exit_code == 0
    assert pq.read_table(output).num_rows == 0
    assert pq.read_schema(output).names[:2] == ["row_index", "id"]
    assert Phase.LOADING not in phases


def test_refusals_happen_before_anything_is_written(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS[:2])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match="does not exist"):
        run_null(null_config(null_model, tmp_path / "nowhere.jsonl", tmp_path / "out.jsonl"))
    with pytest.raises(OutputError, match="is an input"):
        run_null(null_config(null_model, source, source))
    with pytest.raises(OutputError, match="suffix"):
        run_null(null_config(null_model, source, tmp_path / "out.docx"))
    with pytest.raises(ModelError):
        run_null(null_config(tmp_path / "no-model", source, tmp_path / "out.jsonl"))
    with pytest.raises(ConfigError, match=r"temperature is -1"):
        run_null(
            null_config(null_model, source, tmp_path / "out.jsonl", sampling={"temperature": -1.0})
        )
    assert sorted(tmp_path.iterdir()) == before


def test_prompts_that_cannot_run_say_their_size_and_the_bound(
    null_model: Path, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"input_ids": [5] * 2048},
        {"input_ids": [5] * 2047, "max_tokens": 9},
        {"prompt": "a", "max_tokens": 0},
        {"input_ids": [5] * 200},
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    output = tmp_path / "out.jsonl"
    run_null(null_config(null_model, source, output))
    first, second, third, _ = read_rows(output)
    assert first["error_code"] == "prompt_too_long"
    assert "prompt has 2,048 tokens; the model's context is 2,048" in first["error_message"]
    assert (second["completion_tokens"], second["finish_reason"]) in [(1, "length"), (1, "stop")]
    assert (third["status"], third["generated_text"], third["completion_tokens"]) == ("ok", "", 0)
    small = tmp_path / "small.jsonl"
    run_null(null_config(null_model, source, small, engine={"num_kv_blocks": 8}))
    rows_of_small_pool = read_rows(small)
    assert rows_of_small_pool[3]["error_code"] == "exceeds_kv_capacity"
    assert "200" in rows_of_small_pool[3]["error_message"]
    assert "128" in rows_of_small_pool[3]["error_message"]


def test_a_row_that_outgrows_the_kv_cache_ends_with_kv_capacity(
    null_model: Path, tmp_path: Path
) -> None:
    prompts = [
        {"input_ids": [40 + index] * 30, "max_tokens": 500, "ignore_eos": True}
        for index in range(30)
    ]
    source = write_lines(tmp_path / "in.jsonl", prompts)
    output = tmp_path / "out.jsonl"
    result = run_null(null_config(null_model, source, output, engine={"num_kv_blocks": 4}))
    rows = read_rows(output)
    assert result.exit_code == 0
    assert {row["stop_reason"] for row in rows} == {"kv_capacity"}
    assert {row["finish_reason"] for row in rows} == {"length"}
    assert {row["completion_tokens"] for row in rows} == {64 + 1 - 30}


def test_a_used_custom_id_is_an_error_that_names_both_places(
    null_model: Path, tmp_path: Path
) -> None:
    body = {"prompt": "the answer"}
    rows = [{"custom_id": name, "body": body} for name in ("a", "b", "a")]
    source = write_lines(tmp_path / "in.jsonl", rows)
    output = tmp_path / "out.jsonl"
    run_null(null_config(null_model, source, output, output_shape="flat"))
    last = read_rows(output)[2]
    assert (last["id"], last["error_code"]) == ("a", "duplicate_id")
    assert last["error_message"].startswith(f"{source}:3: ")
    assert f"{source}:1" in last["error_message"]
    accepted = tmp_path / "accepted.jsonl"
    run_null(null_config(null_model, source, accepted, rows={"allow_duplicate_ids": True}))
    assert read_rows(accepted)[2]["response"]["status_code"] == 200


def test_the_last_snapshot_equals_the_summary(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [*PROMPTS, {"prompt": ""}])
    config = null_config(null_model, source, tmp_path / "out.jsonl")
    result = run_null(config)
    assert result.stats is not None
    summary = json.loads(config.summary_path.read_text())
    rows = read_rows(Path(config.output))
    assert summary["rows"]["total"] == len(rows) == result.stats.num_rows_done == 41
    assert summary["rows"]["errors_by_code"] == {"empty_prompt": 1}
    assert summary["tokens_of_this_run"]["output"] == sum(row["completion_tokens"] for row in rows)
    assert summary["tokens_of_this_run"]["prompt"] == sum(row["prompt_tokens"] for row in rows)
    assert summary["tokens_of_this_run"]["cached"] == sum(row["cached_tokens"] for row in rows)
    tokens, stats = summary["tokens_of_this_run"], result.stats
    assert (tokens["attended_kv"], tokens["saved_kv"], tokens["kv_saved_rate"]) == (
        stats.num_attended_tokens,
        stats.num_saved_kv_tokens,
        round(stats.kv_saved_rate, 6),
    )
    assert summary["rows"]["hit_max_tokens"] == sum(
        row["finish_reason"] == "length" for row in rows
    )
    assert summary["exit_code"] == 3
    assert summary["fingerprint"]["sampling.max_tokens"] == 12
