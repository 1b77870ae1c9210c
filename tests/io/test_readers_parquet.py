"""Parquet: every string type, nested messages, bounded memory, and the same rows as JSONL."""

import datetime
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.errors import InputReadError
from nanobatch.io.input_row import InputRow
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs
from nanobatch.request import Request, RowError
from tests.io.row_files import parse_file, parser, read, write_jsonl

CHATS = [
    {"id": "a", "messages": [{"role": "user", "content": "hi"}], "max_tokens": None},
    {
        "id": "b",
        "messages": [
            {"role": "user", "content": "sum?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
                ],
            },
            {"role": "tool", "content": "2", "name": "add"},
        ],
        "max_tokens": 5,
    },
]


def write_table(folder: Path, table: pa.Table, **options: object) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(table, path, **options)
    return path


def table_rows(folder: Path, columns: Mapping[str, object], **options: object) -> list[InputRow]:
    return read(write_table(folder, pa.table(dict(columns)), **options))


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()],
)
def test_every_string_type_is_text(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(["one", None, "three"], pa.string()).cast(kind)
    rows = table_rows(tmp_path, {"prompt": column})
    assert [row.fields() for row in rows] == [
        {"prompt": "one"},
        {"prompt": None},
        {"prompt": "three"},
    ]


def test_a_row_knows_its_number_and_its_share_of_the_bytes(tmp_path: Path) -> None:
    rows = table_rows(tmp_path, {"prompt": ["a", "b"]})
    size_bytes = (tmp_path / "rows.parquet").stat().st_size
    assert [row.location for row in rows] == [
        f"{tmp_path / 'rows.parquet'}:1",
        f"{tmp_path / 'rows.parquet'}:2",
    ]
    assert [row.offset_bytes for row in rows] == [size_bytes // 2, size_bytes]


def test_jsonl_and_parquet_of_the_same_rows_give_the_same_requests(tmp_path: Path) -> None:
    from_jsonl = parse_file(write_jsonl(tmp_path, CHATS))
    from_parquet = parse_file(write_table(tmp_path, pa.Table.from_pylist(CHATS)))
    assert all(isinstance(request, Request) for request in from_jsonl)
    assert from_parquet == from_jsonl


def test_messages_may_be_json_text(tmp_path: Path) -> None:
    text = '[{"role": "user", "content": "h\\ud800i"}]'
    (row,) = table_rows(tmp_path, {"messages": [text]})
    request = parser().parse(row)
    assert isinstance(request, Request)
    assert request.messages == ({"role": "user", "content": "h\ufffdi"},)
    assert row.num_surrogates == 1


def test_the_body_of_a_batch_line_may_be_a_struct_or_json_text(tmp_path: Path) -> None:
    struct = {"custom_id": ["c"], "body": [{"prompt": "hi", "max_tokens": 2}]}
    text = {"custom_id": ["c"], "body": ['{"prompt": "hi", "max_tokens": 2}']}
    results = [parser().parse(table_rows(tmp_path, columns)[0]) for columns in (struct, text)]
    assert results[0] == results[1]
    assert isinstance(results[0], Request)
    assert (results[0].prompt, results[0].params.max_tokens) == ("hi", 2)


def test_integral_floats_are_integers(tmp_path: Path) -> None:
    columns = {"input_ids": [[1.0, 2.0]], "max_tokens": [256.0], "id": [7.0]}
    (row,) = table_rows(tmp_path, columns)
    request = parser().parse(row)
    assert isinstance(request, Request)
    assert (request.input_ids, request.params.max_tokens) == ((1, 2), 256)
    assert parser().row_id(row) == "7"


def test_a_value_that_is_no_utf_8_is_one_bad_row(tmp_path: Path) -> None:
    column = pa.array([b"good", b"b\xffd", b"fine"]).view(pa.string())
    first, bad, last = table_rows(tmp_path, {"prompt": column})
    assert bad.fields() == RowError(
        code="invalid_utf8",  # type: ignore[arg-type]
        message="not valid UTF-8: byte 0xff at 1",
    )
    assert (first.fields(), last.fields()) == ({"prompt": "good"}, {"prompt": "fine"})
    assert bad.payload_hash != first.payload_hash


def test_nanoseconds_keep_their_digits_without_pandas(tmp_path: Path) -> None:
    moments = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))
    times = pa.array([3_723_000_000_005], pa.time64("ns"))
    nested = pa.array([[{"at": 1_000}]], pa.list_(pa.struct([("at", pa.timestamp("ns"))])))
    (row,) = table_rows(tmp_path, {"at": moments, "time": times, "nested": nested})
    assert row.fields() == {
        "at": "2023-11-14 22:13:20.123456789",
        "time": "01:02:03.000000005",
        "nested": [{"at": "1970-01-01 00:00:00.000001000"}],
    }


@pytest.mark.parametrize(
    ("unit", "count", "text"),
    [
        ("ns", 5, "PT0.000000005S"),
        ("ns", -1_500_000_000, "-PT1.5S"),
        ("ns", 2**63 - 1, "PT9223372036.854775807S"),
        ("us", 90_061_000_001, "PT90061.000001S"),
        ("ms", 0, "PT0S"),
        ("s", 2**63 - 1, "PT9223372036854775807S"),
        ("ns", None, None),
    ],
)
def test_durations_are_text_with_every_digit(
    tmp_path: Path, unit: str, count: int | None, text: str | None
) -> None:
    kind = pa.duration(unit)
    inner = {"took": count, "label": "a"}
    struct = pa.struct([("took", kind), ("label", pa.string())])
    columns = {
        "took": pa.array([count], kind),
        "list": pa.array([[inner]], pa.list_(struct)),
        "pair": pa.array([[count, count]], pa.list_(kind, 2)),
        "map": pa.array([[("k", count)]], pa.map_(pa.string(), kind)),
        "empty": pa.array([None], pa.list_(struct)),
    }
    (row,) = table_rows(tmp_path, columns)
    assert row.fields() == {
        "took": text,
        "list": [{"took": text, "label": "a"}],
        "pair": [text, text],
        "map": [("k", text)],
        "empty": None,
    }


def test_a_date_beyond_the_calendar_is_text(tmp_path: Path) -> None:
    column = pa.array([0, 5_000_000], pa.int32()).cast(pa.date32())
    rows = table_rows(tmp_path, {"day": column})
    assert [row.fields() for row in rows] == [
        {"day": datetime.date(1970, 1, 1)},
        {"day": "15659-07-15"},
    ]


def test_the_record_batch_stands_beside_the_values(tmp_path: Path) -> None:
    row = table_rows(tmp_path, {"n": pa.array([1, 2, 3], pa.uint8())})[1]
    assert row.arrow_row is not None
    batch, place = row.arrow_row
    assert batch.column("n")[place] == pa.scalar(2, pa.uint8())


def test_the_payload_hash_depends_on_the_row_only(tmp_path: Path) -> None:
    rows = table_rows(tmp_path, {"a": [1, 2], "b": ["x", None]}, row_group_size=1)
    (alone,) = table_rows(tmp_path, {"a": [2], "b": pa.array([None], pa.string())})
    assert rows[1].payload_hash == alone.payload_hash != rows[0].payload_hash


def test_one_row_group_of_any_size_is_read_with_bounded_memory(tmp_path: Path) -> None:
    texts = [f"{number} " + "x" * 20_000 for number in range(3_000)]
    path = write_table(
        tmp_path, pa.table({"prompt": texts}), compression="none", use_dictionary=False
    )
    del texts
    sources = resolve_inputs([str(path)])
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    for _ in iter_rows(sources):
        most = max(most, pool.bytes_allocated() - before)
    assert path.stat().st_size > 60_000_000
    assert most < 30_000_000


def test_damage_in_mid_file_is_fatal_with_file_and_offset(tmp_path: Path) -> None:
    table = pa.table({"prompt": [f"{number} " + "x" * 999 for number in range(4_000)]})
    path = write_table(tmp_path, table, use_dictionary=False, row_group_size=1_000)
    sources = resolve_inputs([str(path)])
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 2_000] = b"\xff" * 2_000
    path.write_bytes(content)
    rows: list[InputRow] = []
    with pytest.raises(InputReadError) as caught:
        for row in iter_rows(sources):
            rows.append(row)
    assert 1_000 <= len(rows) < 4_000
    assert caught.value.message.startswith(f"cannot read {path} at byte ")
