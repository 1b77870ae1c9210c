"""Lines in the shape of OpenAI's batch API."""

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from nanobatch.io.columns import OutputColumns, output_columns
from nanobatch.io.output_openai import OpenAiEncoder, OpenAiJob, job_key, status_code
from nanobatch.io.output_row import OutputRow
from nanobatch.request import ErrorCode, FinishReason, RequestOutput, RowError, RowIndex
from tests.io.output_strategies import answer, fault

COLUMNS = output_columns(pa.schema([]))
JOB = OpenAiJob(model_name="tiny", key="0f")
LOGPROBS = output_columns(pa.schema([]), include_token_ids=True, include_logprobs=True)


def line(row: OutputRow, columns: OutputColumns = COLUMNS) -> dict[str, Any]:
    encoded = OpenAiEncoder(columns, JOB).encode(row)
    assert encoded.count(b"\n") == 1
    assert encoded.endswith(b"\n")
    decoded: dict[str, Any] = json.loads(encoded)
    return decoded


def test_a_chat_is_answered_as_openai_does() -> None:
    assert line(OutputRow("mail-7", (answer(3),), is_chat=True)) == {
        "id": "batch_req_0f-3",
        "custom_id": "mail-7",
        "response": {
            "status_code": 200,
            "request_id": "req_0f-3",
            "body": {
                "id": "chatcmpl-0f-3",
                "object": "chat.completion",
                "created": 0,
                "model": "tiny",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "Paris."},
                        "logprobs": None,
                        "finish_reason": "stop",
                        "stop_reason": None,
                    }
                ],
                "usage": {
                    "prompt_tokens": 12,
                    "completion_tokens": 2,
                    "total_tokens": 14,
                    "prompt_tokens_details": {"cached_tokens": 4},
                },
            },
        },
        "error": None,
    }


def test_a_prompt_is_answered_as_a_text_completion() -> None:
    ended = replace(answer(0), finish_reason=FinishReason.LENGTH, stop_reason="kv_capacity")
    body = line(OutputRow(None, (ended,)))["response"]["body"]
    assert (body["id"], body["object"]) == ("cmpl-0f-0", "text_completion")
    assert body["choices"] == [
        {
            "index": 0,
            "text": "Paris.",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": "kv_capacity",
        }
    ]


def test_a_row_without_an_id_has_no_custom_id() -> None:
    assert line(OutputRow(None, (answer(0),)))["custom_id"] is None


def test_samples_are_choices_of_one_line_and_their_prompt_counts_once() -> None:
    samples = tuple(replace(answer(0, f"{place}"), sample_index=place) for place in range(3))
    body = line(OutputRow("a", samples, is_chat=True))["response"]["body"]
    assert [
        (choice["index"], choice["message"]["content"], choice["completion_tokens"])
        for choice in body["choices"]
    ] == [(0, "0", 2), (1, "1", 2), (2, "2", 2)]
    assert body["usage"]["prompt_tokens"] == 12
    assert body["usage"]["completion_tokens"] == 6
    assert body["usage"]["total_tokens"] == 18


def test_a_rejected_row_has_a_status_code_of_4xx_and_an_error_code() -> None:
    found = line(OutputRow("a", (fault(3),), location="in.jsonl:4", is_chat=True))
    message = "in.jsonl:4: row has 2 fields; the header has 3"
    assert found == {
        "id": "batch_req_0f-3",
        "custom_id": "a",
        "response": {
            "status_code": 400,
            "request_id": "req_0f-3",
            "body": {
                "error": {
                    "message": message,
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "bad_row",
                }
            },
        },
        "error": {"code": "bad_row", "message": message},
    }


@pytest.mark.parametrize("code", ErrorCode)
def test_only_what_failed_after_a_row_was_accepted_has_another_status_code(
    code: ErrorCode,
) -> None:
    later = {ErrorCode.TIMEOUT: 408, ErrorCode.NAN_LOGITS: 500, ErrorCode.ENGINE_ERROR: 500}
    assert status_code(RowError(code=code, message="")) == later.get(code, 400)
    body = line(OutputRow("a", (fault(3, code),)))["response"]["body"]
    assert body["error"]["code"] == code.value


def test_a_row_of_which_some_samples_failed_keeps_the_others_and_their_errors() -> None:
    error = RowError(code=ErrorCode.NAN_LOGITS, message="not a number")
    failed = replace(answer(0), sample_index=1, text="gone", finish_reason=None, error=error)
    found = line(OutputRow("a", (answer(0), failed), location="in.jsonl:1"))
    good, bad = found["response"]["body"]["choices"]
    assert (found["response"]["status_code"], found["error"]) == (200, None)
    assert (good["text"], good["finish_reason"], "error" in good) == ("Paris.", "stop", False)
    assert (bad["text"], bad["finish_reason"]) == ("", "error")
    assert bad["error"] == {"code": "nan_logits", "message": "in.jsonl:1: not a number"}


def test_a_row_of_which_every_sample_failed_keeps_every_error() -> None:
    first = RowError(code=ErrorCode.TIMEOUT, message="took 9 s")
    second = RowError(code=ErrorCode.NAN_LOGITS, message="not a number")
    samples = tuple(
        RequestOutput(row_index=RowIndex(0), sample_index=place, error=error)
        for place, error in enumerate((first, second))
    )
    found = line(OutputRow("a", samples, location="x:1"))
    assert found["response"]["status_code"] == 408
    assert found["error"] == {"code": "timeout", "message": "x:1: took 9 s"}
    choices = found["response"]["body"]["choices"]
    assert [choice["error"]["code"] for choice in choices] == ["timeout", "nan_logits"]


def test_token_ids_and_logprobs_stand_in_a_choice_when_asked_for() -> None:
    output = replace(answer(0), logprobs=(-0.5, float("-inf")))
    [chat] = line(OutputRow("a", (output,), is_chat=True), LOGPROBS)["response"]["body"]["choices"]
    [text] = line(OutputRow("a", (output,)), LOGPROBS)["response"]["body"]["choices"]
    tokens, values = ["token_id:40", "token_id:41"], [-0.5, -9999.0]
    assert chat["token_ids"] == text["token_ids"] == [40, 41]
    assert text["logprobs"] == {"tokens": tokens, "token_logprobs": values}
    assert chat["logprobs"] == {
        "content": [
            {"token": token, "logprob": value, "bytes": None, "top_logprobs": []}
            for token, value in zip(tokens, values, strict=True)
        ]
    }


def test_truncated_tokens_stand_beside_cached_ones_when_asked_for() -> None:
    columns = output_columns(pa.schema([]), include_truncated_tokens=True)
    row = OutputRow("a", (replace(answer(0), num_truncated_tokens=9),))
    usage = line(row, columns)["response"]["body"]["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4, "truncated_tokens": 9}


def test_other_keys_follow_and_clashes_are_renamed() -> None:
    values: dict[str, object] = {"id": 1, "team": ["x"], "error": None, "input_id": 2}
    found = line(OutputRow("a", (answer(0),), passthrough=values))
    assert list(found) == [
        *("id", "custom_id", "response", "error"),
        *("input_id", "team", "input_error", "input_input_id"),
    ]
    assert [found[name] for name in ("input_id", "team", "input_input_id")] == [1, ["x"], 2]


def test_columns_that_are_ours_in_flat_rows_only_keep_their_names() -> None:
    columns = output_columns(pa.schema([("status", pa.int64()), ("response", pa.int64())]))
    row = OutputRow("a", (answer(0),), passthrough={"status": 1, "response": 2})
    assert list(line(row, columns))[4:] == ["status", "input_response"]


def test_no_other_keys_follow_where_none_is_wanted() -> None:
    columns = output_columns(pa.schema([]), selected=[])
    assert list(line(OutputRow("a", (answer(0),), passthrough={"team": 1}), columns)) == [
        *("id", "custom_id", "response", "error")
    ]


def test_text_of_any_kind_is_one_line_that_every_reader_takes() -> None:
    row = OutputRow(
        "i\u2028d", (answer(0, 'a\u2029\ud83d\n"é'),), passthrough={"k\u2028": "\udc00"}
    )
    encoded = OpenAiEncoder(COLUMNS, JOB).encode(row).decode()
    assert "\u2028" not in encoded
    assert "\u2029" not in encoded
    found = json.loads(encoded)
    assert found["custom_id"] == "i\u2028d"
    assert found["response"]["body"]["choices"][0]["text"] == 'a\u2029\ufffd\n"é'
    assert found["k\u2028"] == "\ufffd"


def test_ids_depend_on_the_job_and_the_row_alone() -> None:
    one, same, other = ({"seed": 0, "n": 1}, {"n": 1, "seed": 0}, {"seed": 1, "n": 1})
    assert job_key(one) == job_key(same)
    assert job_key(one) != job_key(other)
    assert len(job_key(one)) == 16
