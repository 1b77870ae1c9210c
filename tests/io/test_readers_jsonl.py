"""JSONL and text are read as bytes, split on newlines only, with bounded memory."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from nanobatch.errors import InputReadError
from nanobatch.io import lines
from nanobatch.io.input_row import InputRow
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs
from nanobatch.request import RowError
from tests.io.row_files import read, write_bytes, write_jsonl


def places(rows: list[InputRow]) -> list[tuple[int, int]]:
    return [(row.row_index, row.line) for row in rows]


def test_a_row_knows_its_place(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b'{"a":1}\n{"a":2}\n')
    first, second = read(path)
    assert (first.row_index, first.line, first.path, first.offset_bytes) == (0, 1, str(path), 8)
    assert (second.row_index, second.location, second.offset_bytes) == (1, f"{path}:2", 16)
    assert second.fields() == {"a": 2}


def test_whitespace_only_lines_are_no_rows_but_counted(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b'\n{"a":1}\n \t\n\r\n{"a":2}\n\n')
    assert places(read(path)) == [(0, 2), (1, 5)]


def test_a_bom_is_accepted_at_the_start_and_in_mid_file(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b'\xef\xbb\xbf{"a":1}\n\xef\xbb\xbf{"a":2}\n\xef\xbb\xbf\n')
    assert [row.fields() for row in read(path)] == [{"a": 1}, {"a": 2}]


def test_crlf_is_accepted_and_a_lone_carriage_return_splits_nothing(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b'{"a":1}\r\n{"a":\r2}\r\n')
    assert [row.fields() for row in read(path)] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_unicode_line_separators_inside_strings_split_nothing(
    tmp_path: Path, separator: str
) -> None:
    line = f'{{"a":"x{separator}y"}}'
    path = write_bytes(tmp_path, f"{line}\n{line}\n".encode())
    assert [row.fields() for row in read(path)] == [{"a": f"x{separator}y"}] * 2


def test_a_last_line_without_newline_is_a_row(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b'{"a":1}\n{"a":2}')
    assert places(read(path)) == [(0, 1), (1, 2)]


def test_rows_of_several_files_are_numbered_through(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path, [{"a": 1}, {"a": 2}], "a.jsonl")
    second = write_bytes(tmp_path, b"one\ntwo\n", "b.txt")
    rows = read(first, second)
    assert [(row.row_index, row.location) for row in rows] == [
        (0, f"{first}:1"),
        (1, f"{first}:2"),
        (2, f"{second}:1"),
        (3, f"{second}:2"),
    ]
    assert rows[-1].offset_bytes == first.stat().st_size + second.stat().st_size


def test_a_line_longer_than_many_chunks_is_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 16)
    path = write_jsonl(tmp_path, [{"a": "x" * 1000}, {"a": "y" * 5}])
    assert [row.fields() for row in read(path)] == [{"a": "x" * 1000}, {"a": "y" * 5}]


@given(
    content=st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xff", b"{", b" "])).map(b"".join),
    chunk_bytes=st.integers(1, 7),
)
def test_lines_do_not_depend_on_chunks(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, chunk_bytes: int
) -> None:
    path = write_bytes(tmp_path_factory.mktemp("lines"), content)
    (source,) = resolve_inputs([str(path)])
    expected = content.split(b"\n")
    expected = expected if expected[-1] else expected[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
        assert list(lines.LineReader(source)) == expected


def test_the_payload_hash_is_xxh3_of_the_line_whatever_surrounds_it(tmp_path: Path) -> None:
    bare = read(write_bytes(tmp_path, b'{"a":1}', "a.jsonl"))
    dressed = read(write_bytes(tmp_path, b'\n\xef\xbb\xbf{"a":1}\r\n{"b":2}\n', "b.jsonl"))
    assert bare[0].payload_hash == dressed[0].payload_hash == xxh3_64_intdigest(b'{"a":1}')
    assert dressed[0].payload_hash != dressed[1].payload_hash


def test_a_row_that_is_only_hashed_is_not_decoded(tmp_path: Path) -> None:
    (row,) = read(write_bytes(tmp_path, b'{"a":"\\ud800"}\n'))
    assert row.payload_hash
    assert row.num_surrogates == 0
    assert row.fields() is row.fields()
    assert row.num_surrogates == 1


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, ({"a": number} for number in range(200_000)))
    rows = iter_rows(resolve_inputs([str(path)]))
    next(rows)
    with path.open("r+b") as stream:
        stream.truncate(1 << 20)
    with pytest.raises(InputReadError):
        list(rows)


def test_an_input_cut_in_mid_run_is_fatal_with_file_and_offset(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, [{"a": number} for number in range(10)])
    sources = resolve_inputs([str(path)])
    with path.open("r+b") as stream:
        stream.truncate(20)
    rows: list[InputRow] = []
    with pytest.raises(InputReadError) as caught:
        rows.extend(iter_rows(sources))
    assert caught.value.message == f"{path} ends at byte 20; it had 90 bytes when the run began"
    assert caught.value.exit_code == 1


def test_an_input_deleted_in_mid_run_is_fatal_with_file_and_offset(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, [{"a": 1}])
    sources = resolve_inputs([str(path)])
    path.unlink()
    with pytest.raises(InputReadError) as caught:
        list(iter_rows(sources))
    assert caught.value.message == f"cannot read {path} at byte 0: No such file or directory"


def test_text_is_a_prompt_a_line_kept_as_it_stands(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbffirst\r\n\n  indented \n   \nlast\xff"
    *good, bad = read(write_bytes(tmp_path, content, "a.txt"))
    assert [(row.line, row.fields()) for row in good] == [
        (1, {"text": "first"}),
        (3, {"text": "  indented "}),
    ]
    fault = bad.fields()
    assert isinstance(fault, RowError)
    assert (fault.code, fault.message) == ("invalid_utf8", "not valid UTF-8: byte 0xff at 4")


def test_reading_again_gives_the_same_rows(tmp_path: Path) -> None:
    generator = random.Random(1)
    path = write_jsonl(tmp_path, [{"a": "x" * generator.randrange(99)} for _ in range(50)])
    sources = resolve_inputs([str(path)])
    first, second = list(iter_rows(sources)), list(iter_rows(sources))
    assert [row.payload_hash for row in first] == [row.payload_hash for row in second]
    assert places(first) == places(second)
