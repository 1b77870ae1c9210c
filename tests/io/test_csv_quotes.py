"""CSV quotes: malformed ones cost the line that they are on, and no line is read without end."""

import csv
import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nanobatch.io import csv_text
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs
from nanobatch.request import RowError
from tests.io.row_files import read, write_bytes

HEADER = b"id,prompt\n"
UNCLOSED = "a quoted field is not closed"


def outcomes(folder: Path, content: bytes) -> list[tuple[int, object]]:
    """Return the line of each row, and its prompt or the code of its fault."""
    found: list[tuple[int, object]] = []
    for row in read(write_bytes(folder, HEADER + content, "rows.csv")):
        fields = row.fields()
        value = fields.code.value if isinstance(fields, RowError) else fields["prompt"]
        found.append((row.line, value))
    return found


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            b'10,"hello 10\n11,"hello 11"\n12,"hello 12"\n',
            [(2, "bad_row"), (3, "hello 11"), (4, "hello 12")],
        ),
        (b'10,"a\n11,b\n12,"c"\n', [(2, "bad_row"), (3, "b"), (4, "c")]),
        (b'10,"a\n11,b\n12,c\n', [(2, "bad_row"), (3, "b"), (4, "c")]),
        (b'10,"a\n\n12,"c\nd"\n', [(2, "bad_row"), (4, "c\nd")]),
        (b'10,a\n11,"b', [(2, "a"), (3, "bad_row")]),
        (b'10,"a" b\n11,c\n', [(2, "bad_row"), (3, "c")]),
        (b'10,"a\n11,"b\n12,"c\n13,d', [(n, "bad_row") for n in (2, 3, 4)] + [(5, "d")]),
    ],
)
def test_a_malformed_quote_costs_its_own_line_only(
    tmp_path: Path, content: bytes, expected: list[tuple[int, object]]
) -> None:
    assert outcomes(tmp_path, content) == expected
    assert outcomes(tmp_path, content.replace(b"\n", b"\r\n")) == [
        (line, value.replace("\n", "\r\n") if isinstance(value, str) else value)
        for line, value in expected
    ]


def test_well_formed_quotes_stay_as_they_are(tmp_path: Path) -> None:
    content = b'1,"say ""hi""\n\nthere"\n2,5" pipe\n3,a""b\n4,""\n5, "x"\n6,"\n"'
    assert outcomes(tmp_path, content) == [
        (2, 'say "hi"\n\nthere'),
        (5, '5" pipe'),
        (6, 'a""b'),
        (7, ""),
        (8, ' "x"'),
        (9, "\n"),
    ]


def test_the_fault_says_where_it_showed(tmp_path: Path) -> None:
    content = HEADER + b'1,"a\n2,"b"\n3,"c\n4,d\n'
    rows = read(write_bytes(tmp_path, content, "rows.csv"))
    faults = [row.fields() for row in rows]
    assert [fault.message for fault in faults if isinstance(fault, RowError)] == [
        "not valid CSV: ',' expected after '\"' on line 3; is a quote before it not closed?",
        UNCLOSED,
    ]


def test_offsets_go_on_at_the_line_that_is_read_again(tmp_path: Path) -> None:
    lines = [b'1,"a\n', b"2,b\n", b'3,"c"\n']
    rows = read(write_bytes(tmp_path, HEADER + b"".join(lines), "rows.csv"))
    assert [row.offset_bytes for row in rows] == [14 + 1, 19, 25]


def test_a_quote_that_nothing_closes_is_given_up_after_a_bounded_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_text, "MAX_QUOTED_BYTES", 1 << 16)
    line = b"2,%s\n" % (b"x" * 1_000)
    path = write_bytes(tmp_path, HEADER + b'1,"a\n' + line * 10_000, "rows.csv")
    sources = resolve_inputs([str(path)])
    tracemalloc.start()
    try:
        num_rows = sum(1 for _ in iter_rows(sources))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_rows == 10_001
    assert most < 3_000_000


def test_lines_that_each_leave_a_quote_open_are_read_in_linear_time(tmp_path: Path) -> None:
    num_lines = 50_000
    began = time.process_time()
    found = outcomes(tmp_path, b'a",,"y\n' * num_lines)
    assert [value for _, value in found] == ["bad_row"] * num_lines
    assert time.process_time() - began < 10


def naive_records(lines: list[str]) -> list[tuple[int, list[str] | None]]:
    """Read a record from each line where the last one ended, or from the next after a fault."""
    records: list[tuple[int, list[str] | None]] = []
    place = 0
    while place < len(lines):
        reader = csv.reader(lines[place:], strict=True)
        try:
            values = next(reader)
            length = reader.line_num
        except csv.Error:
            values, length = None, 1
        if "".join(lines[place : place + length]).strip():
            records.append((place + 1, values))
        place += length
    return records


@settings(deadline=None, max_examples=300)
@example('a",,"y\na",,"y\na"')
@given(st.text(alphabet='a",\n', max_size=60))
def test_records_are_those_of_reading_anew_after_each_fault(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_bytes(Path(folder), b"a,a2\n" + text.encode(), "rows.csv")
        (source,) = resolve_inputs([str(path)])
        found = [
            (record.line - 1, record.values if isinstance(record.values, list) else None)
            for record in csv_text._iter_records(source)
        ][1:]
    lines = [f"{line}\n" for line in text.split("\n")]
    assert found == naive_records(lines if lines[-1] != "\n" else lines[:-1])
