"""Parquet's many types: what is text is a prompt, and JSONL of the same rows asks for the same."""

import datetime
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.job_config import RowConfig
from nanobatch.request import Request, RowError
from tests.io.row_files import code_of, parse_file, parser, read, write_jsonl

TEXTS = ["one", None, "thrée", "one"]
MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.large_string()),
        ("name", pa.string()),
        (
            "tool_calls",
            pa.list_(
                pa.struct(
                    [
                        ("type", pa.string()),
                        ("id", pa.string()),
                        (
                            "function",
                            pa.struct([("name", pa.string()), ("arguments", pa.string())]),
                        ),
                    ]
                )
            ),
        ),
    ]
)
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
CHATS: list[list[dict[str, object]] | None] = [
    [{"role": "user", "content": "hi"}],
    None,
    [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "sum?", "name": "ann"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "2", "name": "add"},
    ],
    [{"role": "user", "content": ""}],
]
MESSAGE_KINDS = [
    pa.list_(MESSAGE),
    pa.large_list(MESSAGE),
    pa.list_view(MESSAGE),
    pa.large_list_view(MESSAGE),
]
TEXT_KINDS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]


def write_table(folder: Path, column: pa.Array, name: str = "prompt", **options: object) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({name: column, "id": pa.array(range(len(column)))}), path, **options)
    return path


def values(folder: Path, column: pa.Array) -> list[object]:
    found = []
    for row in read(write_table(folder, column, "value")):
        fields = row.fields()
        assert not isinstance(fields, RowError)
        found.append(fields["value"])
    return found


def from_jsonl(folder: Path, name: str, column: Sequence[object]) -> list[Request | RowError]:
    lines = [{name: value, "id": index} for index, value in enumerate(column)]
    return parse_file(write_jsonl(folder, lines))


@pytest.mark.parametrize("kind", TEXT_KINDS, ids=str)
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_prompts_of_every_string_type_are_those_of_jsonl(
    tmp_path: Path, kind: pa.DataType, use_dictionary: bool
) -> None:
    plain = pa.array(TEXTS, pa.large_string())
    is_large = pa.types.is_dictionary(kind) and pa.types.is_large_string(kind.value_type)
    column = plain.dictionary_encode() if is_large else plain.cast(pa.string()).cast(kind)
    path = write_table(tmp_path, column, use_dictionary=use_dictionary)
    requests = parse_file(path)
    assert requests == from_jsonl(tmp_path, "prompt", TEXTS)
    assert [code_of(request) for request in requests] == ["ok", "missing_prompt", "ok", "ok"]


@pytest.mark.parametrize("kind", MESSAGE_KINDS, ids=lambda kind: str(kind).partition("<")[0])
def test_messages_of_every_list_type_are_those_of_jsonl(tmp_path: Path, kind: pa.DataType) -> None:
    requests = parse_file(write_table(tmp_path, pa.array(CHATS, kind), "messages"))
    assert requests == from_jsonl(tmp_path, "messages", CHATS)
    assert [code_of(request) for request in requests] == ["ok", "missing_prompt", "ok", "ok"]
    assert isinstance(requests[0], Request)
    assert requests[0].messages == ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize("kind", TEXT_KINDS, ids=str)
def test_messages_may_be_json_text_of_every_string_type(tmp_path: Path, kind: pa.DataType) -> None:
    texts = [None if chat is None else json.dumps(chat) for chat in CHATS]
    plain = pa.array(texts, pa.large_string())
    is_large = pa.types.is_dictionary(kind) and pa.types.is_large_string(kind.value_type)
    column = plain.dictionary_encode() if is_large else plain.cast(pa.string()).cast(kind)
    requests = parse_file(write_table(tmp_path, column, "messages"))
    assert requests == from_jsonl(tmp_path, "messages", CHATS)


def test_a_messages_column_of_a_table_is_that_of_jsonl(tmp_path: Path) -> None:
    table = RowConfig(messages_column="chat", id_column="id")
    path = write_table(tmp_path, pa.array(CHATS, MESSAGE_KINDS[0]), "chat")
    lines = write_jsonl(tmp_path, [{"chat": chat, "id": index} for index, chat in enumerate(CHATS)])
    assert parse_file(path, table) == parse_file(lines, table)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)])
def test_bytes_are_kept_and_are_no_prompt(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array([b"ab", None, b"\xff\x00"], kind)
    assert values(tmp_path, column) == [b"ab", None, b"\xff\x00"]
    codes = [code_of(result) for result in parse_file(write_table(tmp_path, column))]
    assert codes == ["bad_type", "missing_prompt", "bad_type"]


def test_a_column_of_nulls_is_absent(tmp_path: Path) -> None:
    assert values(tmp_path, pa.nulls(2)) == [None, None]
    assert [code_of(result) for result in parse_file(write_table(tmp_path, pa.nulls(2)))] == [
        "missing_prompt",
        "missing_prompt",
    ]


def test_times_and_decimals_keep_zone_and_digits(tmp_path: Path) -> None:
    berlin = datetime.datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    column = pa.array([berlin, None], pa.timestamp("us", "Europe/Berlin"))
    assert values(tmp_path, column) == [berlin, None]
    fine = pa.array([1, None], pa.timestamp("ns", "UTC"))
    assert values(tmp_path, fine) == ["1970-01-01 00:00:00.000000001Z", None]
    for kind in (pa.decimal128(10, 2), pa.decimal256(50, 2)):
        column = pa.array([Decimal("1.50"), None], kind)
        assert values(tmp_path, column) == [Decimal("1.50"), None]


@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
def test_lists_of_nanoseconds_and_durations_lose_nothing(
    tmp_path: Path, list_of: type[pa.DataType]
) -> None:
    moments = pa.array([[1], None, [2, None]], list_of(pa.timestamp("ns")))
    text = "1970-01-01 00:00:00.00000000"
    assert values(tmp_path, moments) == [[f"{text}1"], None, [f"{text}2", None]]
    durations = pa.array([[1], None, [2, None]], list_of(pa.duration("s")))
    assert values(tmp_path, durations) == [["PT1S"], None, ["PT2S", None]]


def test_the_hash_of_a_row_does_not_depend_on_how_its_text_is_stored(tmp_path: Path) -> None:
    hashes = set()
    for kind in TEXT_KINDS[:5]:
        column = pa.array(TEXTS, pa.string()).cast(kind)
        hashes.add(tuple(row.payload_hash for row in read(write_table(tmp_path, column))))
    assert len(hashes) == 1


def test_ids_are_those_of_jsonl(tmp_path: Path) -> None:
    rows = read(write_table(tmp_path, pa.array(TEXTS)))
    assert [parser().row_id(row) for row in rows] == ["0", "1", "2", "3"]
