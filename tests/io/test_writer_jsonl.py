import datetime
import decimal
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanobatch.io.columns import OutputColumns, output_columns
from nanobatch.io.output_json import to_json
from nanobatch.io.output_row import OutputRow
from nanobatch.io.writers import open_writer
from nanobatch.request import FinishReason, RequestOutput, RowIndex
from tests.io.output_strategies import answer, fault, samples

NO_COLUMNS = output_columns(pa.schema([]))


def lines(path: Path, columns: OutputColumns, *rows: OutputRow) -> list[dict[str, Any]]:
    with open_writer(path, columns) as writer:
        for row in rows:
            writer.write(row)
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_an_answer_is_one_compact_object_in_column_order(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    lines(path, NO_COLUMNS, OutputRow("a", (answer(0),), passthrough={"label": [1, {"x": None}]}))
    assert path.read_text() == (
        '{"row_index":0,"id":"a","sample_index":0,"status":"ok","generated_text":"Paris.",'
        '"finish_reason":"stop","stop_reason":null,"prompt_tokens":12,"cached_tokens":4,'
        '"completion_tokens":2,"error_code":null,"error_message":null,"label":[1,{"x":null}]}\n'
    )


def test_an_error_row_has_code_and_message_and_no_text(tmp_path: Path) -> None:
    row = OutputRow(None, (fault(3),), location="in.jsonl:4")
    (line,) = lines(tmp_path / "out.jsonl", NO_COLUMNS, row)
    assert {key: value for key, value in line.items() if value is not None} == {
        "row_index": 3,
        "sample_index": 0,
        "status": "error",
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "error_code": "bad_row",
        "error_message": "in.jsonl:4: row has 2 fields; the header has 3",
    }


def test_a_stop_token_id_becomes_text(tmp_path: Path) -> None:
    output = RequestOutput(
        row_index=RowIndex(0), finish_reason=FinishReason.STOP, stop_reason=151643
    )
    (line,) = lines(tmp_path / "out.jsonl", NO_COLUMNS, OutputRow("a", (output,)))
    assert line["stop_reason"] == "151643"


def test_token_ids_and_logprobs_are_written_when_asked_for(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([]), include_token_ids=True, include_logprobs=True)
    output = RequestOutput(row_index=RowIndex(0), token_ids=(5, 6), logprobs=(-0.5, -math.inf))
    first, second = lines(
        tmp_path / "out.jsonl", columns, OutputRow("a", (output,)), OutputRow("b", (fault(1),))
    )
    assert (first["token_ids"], first["logprobs"]) == ([5, 6], [-0.5, None])
    assert (second["token_ids"], second["logprobs"]) == (None, None)


def test_samples_are_lines_of_their_own_and_repeat_what_passes_through(tmp_path: Path) -> None:
    rows = [
        OutputRow("a", samples(0, 3), passthrough={"n": 1}),
        OutputRow("b", (fault(1),), location="x:2", passthrough={"n": 2}),
    ]
    found = lines(tmp_path / "out.jsonl", NO_COLUMNS, *rows)
    assert [
        (line["id"], line["sample_index"], line["generated_text"], line["n"]) for line in found
    ] == [
        ("a", 0, "answer 0", 1),
        ("a", 1, "answer 1", 1),
        ("a", 2, "answer 2", 1),
        ("b", 0, None, 2),
    ]


def test_truncated_tokens_are_written_when_prompts_may_be_cut(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([]), include_truncated_tokens=True)
    for name in ("out.jsonl", "out.parquet"):
        with open_writer(tmp_path / name, columns) as writer:
            writer.write(OutputRow("a", (replace(answer(0), num_truncated_tokens=9),)))
    [line] = (tmp_path / "out.jsonl").read_text().splitlines()
    written = [json.loads(line), *pq.read_table(tmp_path / "out.parquet").to_pylist()]
    assert [list(row).index("truncated_tokens") for row in written] == [10, 10]
    assert [row["truncated_tokens"] for row in written] == [9, 9]


def test_line_separators_are_escaped_and_lone_surrogates_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    text = "a\u2028b\u2029c\x85d\ud83de\nf 日本"
    (line,) = lines(path, NO_COLUMNS, OutputRow("a", (answer(0, text),)))
    assert line["generated_text"] == "a\u2028b\u2029c\x85d\ufffde\nf 日本"
    raw = path.read_text(encoding="utf-8")
    assert "\\u2028" in raw
    assert "\u2028" not in raw
    assert "\u2029" not in raw
    assert "日本" in raw


def test_passthrough_values_keep_their_json_types_whatever_the_column(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([("n", pa.int64())]))
    values: dict[str, object] = {"n": "word", "wide": 2**80, "nan": [math.nan, 1.0]}
    (line,) = lines(
        tmp_path / "out.jsonl", columns, OutputRow("a", (answer(0),), passthrough=values)
    )
    assert [line[key] for key in values] == ["word", 2**80, [None, 1.0]]


def test_a_clashing_key_is_renamed_also_when_it_comes_late(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([("input_id", pa.large_string())]))
    values: dict[str, object] = {"id": 1, "input_id": 2, "status": 3, "input_status": 4}
    (line,) = lines(
        tmp_path / "out.jsonl", columns, OutputRow("a", (answer(0),), passthrough=values)
    )
    assert line["id"] == "a"
    assert line["status"] == "ok"
    assert [line[key] for key in ("input_input_id", "input_id")] == [1, 2]
    assert [line[key] for key in ("input_status", "input_input_status")] == [3, 4]


def test_only_selected_keys_pass_through(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([("a", pa.int64())]), selected=["a", "late"])
    values: dict[str, object] = {"a": 1, "b": 2, "late": 3}
    (line,) = lines(
        tmp_path / "out.jsonl", columns, OutputRow("x", (answer(0),), passthrough=values)
    )
    assert {key: line.get(key) for key in values} == {"a": 1, "b": None, "late": 3}
    assert "b" not in line


def test_values_that_json_lacks_become_text() -> None:
    values = [
        datetime.datetime(2026, 8, 1, 12, 30, tzinfo=datetime.UTC),
        datetime.date(2026, 8, 1),
        datetime.time(1, 2, 3),
        datetime.timedelta(seconds=1.5),
        -datetime.timedelta(days=99_999_999, microseconds=1),
        decimal.Decimal("1.10"),
        "é".encode(),
        b"\xff\x00",
        (1, {"x": math.inf}),
    ]
    assert json.loads(to_json(values)) == [
        "2026-08-01T12:30:00+00:00",
        "2026-08-01",
        "01:02:03",
        "PT1.5S",
        "-PT8639999913600.000001S",
        "1.10",
        "é",
        "/wA=",
        [1, {"x": None}],
    ]
