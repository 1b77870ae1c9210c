"""Rows that are taken together become what each of them becomes alone."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.io.input_row import InputRow, decode_together
from nanobatch.io.rows import RowParser
from nanobatch.io.shared_columns import MIN_ROWS, shared_columns
from nanobatch.job_config import RowConfig
from nanobatch.request import Request, RowError
from tests.io.row_files import body_line, parser, read, write_bytes, write_jsonl

PLAIN: list[object] = [{"id": f"a{n}", "prompt": f"{n}", "note": n} for n in range(2 * MIN_ROWS)]
ODD: list[object] = [
    {"id": "x", "prompt": "", "note": 0},
    {"id": "x", "prompt": None, "note": 0},
    {"id": True, "prompt": "x", "note": 0},
    {"id": None, "prompt": "x", "note": 0},
    {"id": 5, "prompt": "x", "note": 0},
    {"id": "x", "prompt": 7, "note": 0},
    {"id": "x", "prompt": "x", "note": 0, "max_tokens": 3},
    {"id": "x", "prompt": "x", "note": 0, "max_tokens": "many"},
    {"id": "x", "prompt": "x", "note": 0, "messages": []},
    {"id": "x", "prompt": "x", "logit_bias": None},
    {"id": "x", "prompt": "x", "note": {}, "body": {"prompt": "y"}},
    {"custom_id": "x", "body": {"prompt": "y"}, "note": 1},
    body_line({"messages": [{"role": "user", "content": "x"}]}),
    {"note": 0},
    [],
]


def together(row_parser: RowParser, rows: list[InputRow]) -> list[Request | RowError]:
    """Parse rows as a feeder does that has no finished ones."""
    parsed: list[Request | RowError] = []
    while len(parsed) < len(rows):
        rest = rows[len(parsed) :]
        parsed += row_parser.parse_together(rest) or [row_parser.parse(rest[0])]
    return parsed


def require_the_same(path: Path, row_config: RowConfig | None = None) -> None:
    rows, again = read(path), read(path)
    decode_together(rows)
    one, other = parser(row_config), parser(row_config)
    assert together(one, rows) == [other.parse(row) for row in again]
    kept = [other.id_and_passthrough(row) for row in again]
    assert one.ids_and_passthrough(rows) == kept
    assert kept == [(other.row_id(row), other.passthrough(row)) for row in again]
    assert one.row_ids(rows) == [row_id for row_id, _ in kept]
    assert [row.payload_hash for row in rows] == [row.payload_hash for row in again]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_an_odd_row_among_plain_ones(tmp_path: Path, odd: object) -> None:
    require_the_same(write_jsonl(tmp_path, [*PLAIN, odd, *PLAIN]))


def test_rows_of_one_odd_kind(tmp_path: Path) -> None:
    for odd in ODD:
        require_the_same(write_jsonl(tmp_path, [odd] * (MIN_ROWS + 1)))


def test_rows_of_a_table_of_csv_and_of_text(tmp_path: Path) -> None:
    table = RowConfig(prompt_column="note", id_column="prompt")
    require_the_same(write_jsonl(tmp_path, PLAIN), table)
    lines = "".join(f"a{n},{'' if n == 5 else n},x\n" for n in range(2 * MIN_ROWS))
    require_the_same(write_bytes(tmp_path, f"id,prompt,note\n{lines}".encode(), "rows.csv"))
    require_the_same(write_bytes(tmp_path, b"a line\n" * MIN_ROWS, "rows.txt"))


@pytest.mark.parametrize(
    "column",
    [
        {"note": [1] * 20},
        {"note": [None] * 20},
        {"id": [None] * 20},
        {"id": ["x"] * 19 + [None]},
        {"id": list(range(20))},
        {"prompt": ["x"] * 19 + [""]},
        {"prompt": ["x"] * 19 + [None]},
        {"max_tokens": [3] * 20},
        {"body": ["x"] * 20},
    ],
    ids=str,
)
def test_rows_of_parquet(tmp_path: Path, column: dict[str, list[object]]) -> None:
    columns: dict[str, list[object]] = {"id": [f"{n}" for n in range(20)], "prompt": ["x"] * 20}
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({**columns, **column}), path, row_group_size=7)
    require_the_same(path)


def test_rows_that_lie_apart_in_their_columns_are_not_taken_together(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"prompt": [f"{n}" for n in range(20)]}), path)
    rows = read(path)
    assert shared_columns([rows[0], rows[2], rows[3]]) is None
    shared = shared_columns(rows[3:9])
    assert shared is not None
    assert shared.texts("prompt") == ["3", "4", "5", "6", "7", "8"]
