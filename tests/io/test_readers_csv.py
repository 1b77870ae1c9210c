"""CSV: a header, records of text, and faults that stay within their record."""

from pathlib import Path

import pytest

from nanobatch.io.input_row import InputRow
from nanobatch.job_config import RowConfig
from nanobatch.request import Request, RowError
from tests.io.row_files import code_of, parse_file, parser, read, write_bytes


def csv_rows(folder: Path, content: bytes, delimiter: str = ",") -> list[InputRow]:
    return read(write_bytes(folder, content, "rows.csv"), delimiter=delimiter)


def requests(folder: Path, content: bytes, row_config: RowConfig | None = None) -> list[Request]:
    results = parse_file(write_bytes(folder, content, "rows.csv"), row_config)
    assert all(isinstance(result, Request) for result in results), results
    return [result for result in results if isinstance(result, Request)]


def test_the_header_names_the_columns_and_all_fields_are_text(tmp_path: Path) -> None:
    (row,) = csv_rows(tmp_path, b"id,score,note\n007,1.5,\n")
    assert row.fields() == {"id": "007", "score": "1.5", "note": ""}
    assert row.line == 2


def test_quoted_newlines_belong_to_their_field_and_count_as_lines(tmp_path: Path) -> None:
    content = b'a,b\r\n"one\ntwo","say ""hi"""\r\n\r\nx,"y"\n'
    rows = csv_rows(tmp_path, content)
    assert [row.line for row in rows] == [2, 5]
    assert rows[0].fields() == {"a": "one\ntwo", "b": 'say "hi"'}


def test_a_field_may_have_any_length(tmp_path: Path) -> None:
    text = b"x" * 1_000_000
    (row,) = csv_rows(tmp_path, b"a\n" + text + b"\n")
    assert row.fields() == {"a": text.decode()}


@pytest.mark.parametrize("delimiter", ["\t", r"\t"])
def test_the_delimiter_can_be_chosen(tmp_path: Path, delimiter: str) -> None:
    (row,) = csv_rows(tmp_path, b"a\tb\n1,5\t2\n", delimiter)
    assert row.fields() == {"a": "1,5", "b": "2"}


def test_a_bom_before_the_header_is_not_part_of_a_name(tmp_path: Path) -> None:
    (row,) = csv_rows(tmp_path, b"\xef\xbb\xbfa\n1\n")
    assert row.fields() == {"a": "1"}


def test_a_column_without_name_is_called_by_its_place(tmp_path: Path) -> None:
    (row,) = csv_rows(tmp_path, b",text\n0,hi\n")
    assert row.fields() == {"column_1": "0", "text": "hi"}


@pytest.mark.parametrize("record", [b"1", b"1,2,3"])
def test_a_ragged_row_is_bad_and_its_neighbours_are_not(tmp_path: Path, record: bytes) -> None:
    first, bad, last = csv_rows(tmp_path, b"a,b\n1,2\n" + record + b"\n3,4\n")
    num_fields = record.count(b",") + 1
    assert bad.fields() == RowError(
        code="bad_row",  # type: ignore[arg-type]
        message=f"row has {num_fields} fields; the header has 2",
    )
    assert (first.fields(), last.fields()) == ({"a": "1", "b": "2"}, {"a": "3", "b": "4"})


def test_bytes_that_are_no_utf_8_are_one_bad_row(tmp_path: Path) -> None:
    bad, good = csv_rows(tmp_path, b"a,b\n1,\xff\n3,4\n")
    fault = bad.fields()
    assert isinstance(fault, RowError)
    assert fault.code == "invalid_utf8"
    assert good.fields() == {"a": "3", "b": "4"}


def test_a_carriage_return_in_mid_field_is_one_bad_row(tmp_path: Path) -> None:
    bad, good = csv_rows(tmp_path, b"a,b\n1\r1,2\n3,4\n")
    fault = bad.fields()
    assert isinstance(fault, RowError)
    assert fault.code == "bad_row"
    assert good.fields() == {"a": "3", "b": "4"}


def test_a_quote_inside_an_unquoted_field_is_just_a_quote(tmp_path: Path) -> None:
    (row,) = csv_rows(tmp_path, b'a,b\n5" pipe,x')
    assert row.fields() == {"a": '5" pipe', "b": "x"}


def test_the_payload_hash_is_of_the_record_only(tmp_path: Path) -> None:
    first = csv_rows(tmp_path, b"a,b\n1,2\n3,4\n")
    second = csv_rows(tmp_path, b"a,b\r\n\r\n3,4")
    assert first[1].payload_hash == second[0].payload_hash
    assert first[0].payload_hash != first[1].payload_hash


def test_numbers_are_parsed_for_parameters_and_for_nothing_else(tmp_path: Path) -> None:
    content = b"prompt,max_tokens,temperature,ignore_eos,stop,score\n5,16,0.5,TRUE,7,1.5\n"
    (request,) = requests(tmp_path, content)
    assert request.prompt == "5"
    params = request.params
    assert (params.max_tokens, params.temperature) == (16, 0.5)
    assert (params.ignore_eos, params.stop) == (True, ("7",))


def test_an_empty_field_of_a_parameter_is_absent(tmp_path: Path) -> None:
    (request,) = requests(tmp_path, b"prompt,max_tokens,stop,tools\nhi,,,\n")
    assert request.params.max_tokens is None
    assert request.params.stop == ()
    assert request.tools is None


def test_lists_are_json_text(tmp_path: Path) -> None:
    content = (
        b"prompt,messages,input_ids,stop\n"
        b',"[{""role"": ""user"", ""content"": ""hi""}]",,\n'
        b',,"[1, 2]","[""a"", ""b""]"\n'
    )
    chat, ids = requests(tmp_path, content)
    assert chat.messages == ({"role": "user", "content": "hi"},)
    assert (ids.input_ids, ids.params.stop) == ((1, 2), ("a", "b"))


@pytest.mark.parametrize("value", [b"ten", b"1.5", b"NaN", b"true"])
def test_text_that_is_no_integer_is_bad_params(tmp_path: Path, value: bytes) -> None:
    (row,) = csv_rows(tmp_path, b"prompt,max_tokens\nhi," + value + b"\n")
    result = parser().parse(row)
    assert isinstance(result, RowError)
    assert result.code == "bad_params"


def test_a_boolean_of_a_csv_may_have_capitals(tmp_path: Path) -> None:
    content = b"prompt,skip_special_tokens,do_sample\nhi,True,\nhi,,TRUE\nhi,False,\n"
    results = parse_file(write_bytes(tmp_path, content, "rows.csv"))
    assert [code_of(result) for result in results] == ["ok", "ok", "unsupported"]
