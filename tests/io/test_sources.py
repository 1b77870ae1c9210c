"""Inputs are recognised, opened and sniffed before anything is loaded; faults name the file."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.errors import ConfigError, InputError
from nanobatch.io.input_source import total_bytes
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs
from tests.io.row_files import write_bytes, write_jsonl


def refusal(path: Path | str, **options: object) -> InputError:
    with pytest.raises(InputError) as caught:
        resolve_inputs([str(path)], **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("A.JSONL", "jsonl"),
        ("a.csv", "csv"),
        ("a.txt", "text"),
    ],
)
def test_the_suffix_tells_the_format(tmp_path: Path, name: str, expected: str) -> None:
    path = write_bytes(tmp_path, b"prompt\nx\n", name)
    (source,) = resolve_inputs([str(path)])
    assert source.format == expected


def test_a_parquet_suffix_tells_the_format(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": ["x", "y"]}), path)
    (source,) = resolve_inputs([str(path)])
    assert (source.format, source.columns, source.num_rows) == ("parquet", ("prompt",), 2)


def test_an_explicit_format_overrides_the_suffix(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"a prompt\n", "prompts.jsonl")
    (source,) = resolve_inputs([str(path)], "text")
    (row,) = iter_rows([source])
    assert row.fields() == {"text": "a prompt"}


def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"x", "rows.xlsx")
    assert refusal(path).message == (
        f"{path} has no known suffix; known are .jsonl .ndjson .parquet .csv .txt, "
        "and .gz .zst after them"
    )


def test_a_missing_input_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.jsonl").message == f"{tmp_path / 'no.jsonl'} does not exist"


def test_no_input_is_refused() -> None:
    with pytest.raises(InputError, match="no input"):
        resolve_inputs([])


def test_a_path_with_a_nul_is_refused() -> None:
    assert refusal("a\0b.jsonl").message == r"'a\x00b.jsonl' is no path: it has a zero byte"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_input_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, [{"prompt": "x"}])
    path.chmod(0)
    assert refusal(path).message == f"{path} cannot be opened: Permission denied"


def test_a_named_pipe_is_refused_because_inputs_are_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "fifo.jsonl"
    os.mkfifo(path)
    assert "not a regular file" in refusal(path).message


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ('{"prompt": "x"}'.encode("utf-16"), "UTF-16"),
        ('{"prompt": "x"}'.encode("utf-16-le"), "UTF-16"),
        ('{"prompt": "x"}'.encode("utf-16-be"), "UTF-16"),
        ("x".encode("utf-32"), "UTF-32"),
        (b"\x1f\x8b\x08\x00", "not readable gzip data"),
        (b"\x28\xb5\x2f\xfd", "not readable zstd data"),
        (b"PAR1....", "Parquet"),
    ],
)
def test_utf_16_and_other_encodings_are_one_file_level_error(
    tmp_path: Path, head: bytes, kind: str
) -> None:
    path = write_bytes(tmp_path, head)
    message = refusal(path).message
    assert message.startswith(f"{path} is ")
    assert kind in message


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path, [{"prompt": "x"}], "with space.jsonl")
    (source,) = resolve_inputs([path.as_uri()])
    assert (source.path, source.remote) == (str(path), None)


def test_a_0_byte_parquet_is_refused(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"", "a.parquet")
    with pytest.raises(InputError, match="is empty"):
        resolve_inputs([str(path)])


def test_a_parquet_without_its_footer_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.parquet"
    pq.write_table(pa.table({"prompt": ["x"] * 100}), whole)
    path = write_bytes(tmp_path, whole.read_bytes()[:-20], "cut.parquet")
    assert refusal(path).message.startswith(f"{path} is not a readable Parquet file: ")


def test_a_text_named_parquet_is_refused(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b'{"prompt": "x"}\n' * 10, "a.parquet")
    assert "not a readable Parquet file" in refusal(path).message


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_a_csv_without_header_is_refused(tmp_path: Path, content: bytes) -> None:
    path = write_bytes(tmp_path, content, "a.csv")
    assert refusal(path).message == f"{path} has no header"


def test_a_csv_with_two_equal_columns_is_refused(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"a,b,a\n1,2,3\n", "a.csv")
    assert refusal(path).message == f"{path} has two columns named 'a'"


def test_a_csv_whose_header_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = write_bytes(tmp_path, b"pr\xe4mie\n1\n", "a.csv")
    with pytest.raises(InputError, match=r"the header of .* is not valid UTF-8"):
        resolve_inputs([str(path)])


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n"])
def test_a_delimiter_that_is_not_one_character_is_refused(tmp_path: Path, delimiter: str) -> None:
    path = write_bytes(tmp_path, b"a,b\n1,2\n", "a.csv")
    with pytest.raises(ConfigError, match="delimiter"):
        resolve_inputs([str(path)], delimiter=delimiter)


def test_every_input_is_sniffed_before_a_row_is_read(tmp_path: Path) -> None:
    good = write_jsonl(tmp_path, [{"prompt": "x"}])
    with pytest.raises(InputError, match=r"missing\.jsonl"):
        resolve_inputs([str(good), str(tmp_path / "missing.jsonl")])


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_zero_rows_are_a_valid_input(tmp_path: Path, name: str) -> None:
    path = write_bytes(tmp_path, b"", name)
    assert list(iter_rows(resolve_inputs([str(path)]))) == []


def test_a_parquet_file_and_a_csv_header_with_zero_rows_are_valid(tmp_path: Path) -> None:
    table = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), table)
    header = write_bytes(tmp_path, b"prompt\n", "a.csv")
    assert list(iter_rows(resolve_inputs([str(table), str(header)]))) == []


def test_total_bytes_are_those_of_all_inputs(tmp_path: Path) -> None:
    first = write_bytes(tmp_path, b'{"prompt":"x"}\n', "a.jsonl")
    second = write_bytes(tmp_path, b"abc\n", "b.txt")
    assert total_bytes(resolve_inputs([str(first), str(second)])) == 19
