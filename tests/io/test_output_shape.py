"""Which shape rows are written in, and which of them are chats."""

from pathlib import Path
from typing import Any

import pytest

from nanobatch.errors import OutputError
from nanobatch.io.output_shape import output_shape, settled_shape
from nanobatch.io.readers import iter_rows
from nanobatch.io.rows import RowParser
from nanobatch.io.sources import resolve_inputs
from nanobatch.io.writers import OutputFormat
from nanobatch.job_config import OutputShape, RowConfig
from nanobatch.request import SamplingParams
from tests.io.row_files import body_line, write_bytes, write_jsonl

BATCH = body_line({"prompt": "x"})
FLAT = {"prompt": "x"}
CHAT = {"messages": [{"role": "user", "content": "x"}]}


def shape_of_lines(path: Path, written: OutputFormat = OutputFormat.JSONL) -> OutputShape:
    rows = iter_rows(resolve_inputs([str(path)]))
    parser = RowParser(RowConfig(), SamplingParams())
    return output_shape(None, written, rows=rows, parser=parser)


def test_a_batch_line_first_asks_for_openai_s_shape(tmp_path: Path) -> None:
    assert shape_of_lines(write_jsonl(tmp_path, [BATCH, FLAT])) == "openai"
    assert shape_of_lines(write_jsonl(tmp_path, [FLAT, BATCH])) == "flat"
    assert shape_of_lines(write_jsonl(tmp_path, [body_line({}), FLAT])) == "openai"


def test_lines_that_are_no_rows_do_not_tell_the_shape(tmp_path: Path) -> None:
    bad = b'{"custom_id": \n[1]\n\xff\n'
    batch_line = b'{"custom_id": "a", "body": {"prompt": "x"}}\n'
    assert shape_of_lines(write_bytes(tmp_path, bad + batch_line)) == "openai"
    assert shape_of_lines(write_bytes(tmp_path, bad)) == "flat"
    assert shape_of_lines(write_bytes(tmp_path, b"")) == "flat"


def test_rows_after_the_first_that_tells_are_not_read(tmp_path: Path) -> None:
    rows = iter_rows(resolve_inputs([str(write_jsonl(tmp_path, [BATCH, FLAT, FLAT]))]))
    parser = RowParser(RowConfig(), SamplingParams())
    output_shape("flat", OutputFormat.JSONL, rows=rows, parser=parser)
    output_shape(None, OutputFormat.PARQUET, rows=rows, parser=parser)
    output_shape(None, OutputFormat.JSONL, rows=rows, parser=parser)
    assert len(list(rows)) == 2


def test_what_was_asked_for_needs_no_row() -> None:
    assert settled_shape("openai", OutputFormat.JSONL) == "openai"
    assert settled_shape("flat", OutputFormat.PARQUET) == "flat"
    assert settled_shape(None, OutputFormat.JSONL) is None


def test_parquet_is_flat(tmp_path: Path) -> None:
    assert shape_of_lines(write_jsonl(tmp_path, [BATCH]), OutputFormat.PARQUET) == "flat"
    with pytest.raises(OutputError) as caught:
        settled_shape("openai", OutputFormat.PARQUET)
    assert caught.value.exit_code == 2
    assert caught.value.message == "a Parquet output has flat rows, not OpenAI's shape"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({**BATCH, "url": "/v1/chat/completions"}, True),
        ({**BATCH, "url": "/v1/completions"}, False),
        (body_line(CHAT), True),
        (BATCH, False),
        ({"custom_id": "a", "body": '{"messages": 5}'}, True),
        ({"custom_id": "a", "body": '{"a": 1, "a": 2}'}, False),
        ({"custom_id": "a", "body": 5}, False),
        (CHAT, True),
        (FLAT, False),
        ({"input_ids": [1]}, False),
        ({"messages": "no list"}, True),
        ({}, False),
    ],
)
def test_a_row_says_whether_it_is_a_chat_also_if_it_is_at_fault(
    row: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    assert is_chat(write_jsonl(tmp_path, [row]), RowConfig()) is expected


def is_chat(path: Path, row_config: RowConfig) -> bool:
    [row] = iter_rows(resolve_inputs([str(path)]))
    return RowParser(row_config, SamplingParams()).is_chat(row)


def test_a_prompt_of_a_table_or_of_text_is_a_chat_unless_it_is_sent_raw(tmp_path: Path) -> None:
    table, text = write_jsonl(tmp_path, [{"q": "x"}]), write_bytes(tmp_path, b"x\n", "in.txt")
    assert is_chat(table, RowConfig(template="{{ q }}"))
    assert is_chat(table, RowConfig(messages_column="q", raw=True))
    assert not is_chat(table, RowConfig(prompt_column="q", raw=True))
    assert is_chat(text, RowConfig())
    assert not is_chat(text, RowConfig(raw=True))


def test_a_line_that_cannot_be_decoded_is_no_chat(tmp_path: Path) -> None:
    assert not is_chat(write_bytes(tmp_path, b"{\n"), RowConfig())
