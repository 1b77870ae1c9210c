"""Which columns an output has, and what stands in them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.errors import ConfigError
from tests.job.null_jobs import PROMPTS, null_config, read_rows, run_null, write_lines


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


def test_a_csv_without_rows_keeps_its_columns(null_model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("prompt,colour\n")
    output = tmp_path / "out.parquet"
    run_null(null_config(null_model, tmp_path / "in.csv", output))
    assert pq.read_schema(output).field("colour").type == pa.large_string()


def test_parquet_types_hold_beside_other_inputs(null_model: Path, tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a"], "stars": pa.array([1], pa.int8())})
    pq.write_table(table, tmp_path / "one.parquet")
    other = write_lines(tmp_path / "two.jsonl", [{"prompt": "b", "stars": 2, "note": "x"}])
    output = tmp_path / "out.parquet"
    run_null(null_config(null_model, [tmp_path / "one.parquet", other], output))
    written = pq.read_table(output)
    assert written.schema.field("stars").type == pa.int8()
    assert written.column("stars").to_pylist() == [1, 2]
    assert written.column("note").to_pylist() == [None, "x"]


def test_a_chosen_column_that_no_row_has_is_warned_of(
    null_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_lines(tmp_path / "in.jsonl", PROMPTS[:3])
    run_null(null_config(null_model, source, tmp_path / "out.jsonl", columns=("score", "nope")))
    assert "--columns names 'nope', which is in none of the first rows" in caplog.text
    assert "'score'" not in caplog.text


def test_ids_are_text_whatever_they_were(null_model: Path, tmp_path: Path) -> None:
    ids: list[object] = [7, 7.0, 2**70, "07", None, 1.5]
    rows = [{"id": value, "prompt": "a", "max_tokens": 1} for value in ids]
    source = write_lines(tmp_path / "in.jsonl", rows)
    for name in ("out.jsonl", "out.parquet"):
        run_null(null_config(null_model, source, tmp_path / name))
        assert [row["id"] for row in read_rows(tmp_path / name)] == [
            *("7", "7", str(2**70), "07", None, "1.5")
        ]


def test_rows_say_how_much_of_their_prompt_was_cut(null_model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "the answer is"}, {"prompt": "the answer is " * 1000}]
    source = write_lines(tmp_path / "in.jsonl", rows)
    for name in ("out.jsonl", "out.parquet"):
        config = null_config(
            null_model, source, tmp_path / name, engine={"long_prompts": "truncate-left"}
        )
        run_null(config)
        short, cut = read_rows(tmp_path / name)
        assert short["truncated_tokens"] == 0
        assert cut["truncated_tokens"] > 0
        assert (cut["status"], cut["prompt_tokens"]) == ("ok", 2048 - 12)
    run_null(null_config(null_model, source, tmp_path / "error.jsonl"))
    assert "truncated_tokens" not in read_rows(tmp_path / "error.jsonl")[0]


def test_later_keys_and_misfits_of_a_job_stand_in_extra(null_model: Path, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"n_stars": 1}] * 10_000  # no prompts: errors are quick
    rows.append({"prompt": "a", "n_stars": "many", "late": {"x": None}})
    source = write_lines(tmp_path / "in.jsonl", rows)
    output = tmp_path / "out.parquet"
    run_null(null_config(null_model, source, output, max_errors=None))
    assert pq.read_schema(output).names[-2:] == ["n_stars", "extra"]
    last = pq.read_table(output, columns=["n_stars", "extra"]).to_pylist()[-1]
    assert last == {"n_stars": None, "extra": '{"n_stars":"many","late":{"x":null}}'}


def test_a_parquet_row_of_invalid_utf8_leaves_an_output_that_can_be_read(
    null_model: Path, tmp_path: Path
) -> None:
    notes = pa.array([b"fine", b"caf\xe9", b"too"]).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"prompt": ["a", "b", "c"], "note": notes}), tmp_path / "in.parquet")
    output = tmp_path / "out.parquet"
    assert run_null(null_config(null_model, tmp_path / "in.parquet", output)).exit_code == 3
    written = pq.read_table(output)
    written.validate(full=True)
    assert written.column("error_code").to_pylist() == [None, "invalid_utf8", None]
    assert written.column("note").to_pylist() == ["fine", None, "too"]
