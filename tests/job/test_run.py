"""Whole runs on the null model: rows in, rows out, resume, refusals."""

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.errors import (
    ConfigError,
    InputError,
    JournalError,
    ModelError,
    OutputError,
    ResumeMismatchError,
)
from nanobatch.job.stats import JobStats, Phase
from nanobatch.job.stop_signal import StopSignal
from tests.job.null_jobs import (
    null_config,
    read_rows,
    run_null,
    without_cached_tokens,
    write_lines,
)

PROMPTS = [
    {"id": f"row-{index}", "prompt": f"the answer of {index} is", "score": index / 2}
    for index in range(40)
]


class StopAfter:
    """Asks a run to stop, as SIGTERM does, once a number of rows is done."""

    def __init__(self, num_rows: int, stop: StopSignal) -> None:
        self._num_rows = num_rows
        self._stop = stop

    def __call__(self, stats: JobStats) -> None:
        if stats.num_rows_done >= self._num_rows and stats.phase is Phase.RUNNING:
            self._stop.received = signal.SIGTERM


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


def test_output_columns_stand_in_the_order_of_the_contract(
    null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS[:3])
    output = tmp_path / "out.parquet"
    run_null(null_config(null_model, source, output, include_token_ids=True))
    assert pq.read_schema(output).names == [
        *("row_index", "id", "sample_index", "status", "generated_text", "finish_reason"),
        *("stop_reason", "prompt_tokens", "cached_tokens", "completion_tokens", "error_code"),
        *("error_message", "token_ids", "score", "extra"),
    ]


def test_logprobs_stand_beside_their_tokens(null_model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS[:3])
    output = tmp_path / "out.jsonl"
    config = null_config(
        null_model, source, output, include_token_ids=True, engine={"return_logprobs": True}
    )
    run_null(config)
    for row in read_rows(output):
        assert row["logprobs"] == [-0.5] * row["completion_tokens"]
        assert len(row["token_ids"]) == row["completion_tokens"]


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
        ({"sampling": {"temperature": 0.5, "max_tokens": 12}}, "sampling.temperature"),
        ({"engine": {"seed": 7}}, "seed"),
        ({"rows": {"system": "Be brief."}}, "system"),
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
    with pytest.raises(ResumeMismatchError, match=r"inputs differs"):
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


def test_parquet_columns_keep_their_types_and_clashes_are_renamed(
    null_model: Path, tmp_path: Path
) -> None:
    table = pa.table(
        {
            "review": ["good", "bad", None],
            "status": ["new", "old", "old"],
            "stars": pa.array([1, 2, 3], pa.int8()),
            "when": pa.array([0, 1, 2], pa.timestamp("ms")),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    output = tmp_path / "out.parquet"
    config = null_config(
        null_model,
        tmp_path / "in.parquet",
        output,
        rows={"template": "Is this good? {{ review }}"},
    )
    assert run_null(config).exit_code == 0
    written = pq.read_table(output)
    assert written.column("input_status").to_pylist() == ["new", "old", "old"]
    assert written.schema.field("stars").type == pa.int8()
    assert written.schema.field("when").type == pa.timestamp("ms")
    assert written.column("review").to_pylist() == ["good", "bad", None]
    assert "extra" not in written.schema.names


@pytest.mark.parametrize("kept", [(), ("score",), ("prompt", "score")])
def test_chosen_columns_pass_through(
    kept: tuple[str, ...], null_model: Path, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS[:5])
    output = tmp_path / "out.parquet"
    run_null(null_config(null_model, source, output, columns=kept))
    names = pq.read_schema(output).names
    assert [name for name in names if name in ("prompt", "score")] == list(kept)


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
    run_null(null_config(null_model, source, output))
    last = read_rows(output)[2]
    assert (last["id"], last["error_code"]) == ("a", "duplicate_id")
    assert last["error_message"].startswith(f"{source}:3: ")
    assert f"{source}:1" in last["error_message"]
    accepted = tmp_path / "accepted.jsonl"
    run_null(null_config(null_model, source, accepted, rows={"allow_duplicate_ids": True}))
    assert read_rows(accepted)[2]["status"] == "ok"


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
    assert summary["rows"]["hit_max_tokens"] == sum(
        row["finish_reason"] == "length" for row in rows
    )
    assert summary["exit_code"] == 3
    assert summary["fingerprint"]["sampling.max_tokens"] == 12


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


def test_parquet_columns_pass_through_to_jsonl(null_model: Path, tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a", "b"], "stars": [1, None], "tags": [["x"], []]})
    pq.write_table(table, tmp_path / "in.parquet")
    output = tmp_path / "out.jsonl"
    run_null(null_config(null_model, tmp_path / "in.parquet", output))
    assert [(row["stars"], row["tags"]) for row in read_rows(output)] == [(1, ["x"]), (None, [])]


def test_a_column_that_no_input_has_is_refused_before_the_model_is_loaded(
    null_model: Path, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"prompt": ["a"], "stars": [1]}), tmp_path / "in.parquet")
    config = null_config(
        null_model, tmp_path / "in.parquet", tmp_path / "out.jsonl", columns=("star",)
    )
    with pytest.raises(ConfigError) as caught:
        run_null(config)
    assert caught.value.message == "--columns names 'star', which no input has"
    assert caught.value.hint == "did you mean stars?"


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
    assert refusals == [f"another run writes to {config.journal_dir} (process {os.getpid()})"]
