"""Standard input is kept while it is read, so that the same pipe resumes."""

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nanobatch.errors import InputError, ResumeMismatchError
from nanobatch.io.input_source import InputSource, total_bytes
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs
from nanobatch.io.stdin_spool import StdinSpool

LINES = b'{"a":1}\n{"a":2}\n{"a":3}\n'


@contextmanager
def piped(content: bytes) -> Iterator[io.BufferedReader]:
    read_fd, write_fd = os.pipe()

    def produce() -> None:
        with os.fdopen(write_fd, "wb") as stream:
            try:
                stream.write(content)
            except BrokenPipeError:
                return

    producer = threading.Thread(target=produce)
    producer.start()
    with os.fdopen(read_fd, "rb") as stream:
        yield stream
    producer.join()


def stdin_source(stream: io.BufferedReader, path: Path | None) -> InputSource:
    return InputSource(path="-", format="jsonl", size_bytes=None, spool=StdinSpool(stream, path))


def values(source: InputSource) -> list[object]:
    return [row.fields() for row in iter_rows([source])]


def test_standard_input_is_read_as_jsonl_and_kept(tmp_path: Path) -> None:
    spool_path = tmp_path / "job.nanobatch" / "stdin.jsonl"
    with piped(LINES) as stream:
        source = stdin_source(stream, spool_path)
        rows = list(iter_rows([source]))
    assert [row.location for row in rows] == ["<stdin>:1", "<stdin>:2", "<stdin>:3"]
    assert spool_path.read_bytes() == LINES
    assert total_bytes([source]) == len(LINES)


def test_rows_come_while_the_pipe_is_still_open(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb") as stream:
        source = stdin_source(stream, tmp_path / "spool")
        rows = iter_rows([source])
        os.write(write_fd, b'{"a":1}\n{"a"')
        assert next(rows).fields() == {"a": 1}
        assert total_bytes([source]) is None
        os.write(write_fd, b":2}\n")
        assert next(rows).fields() == {"a": 2}
        os.close(write_fd)
        assert list(rows) == []


def test_the_same_source_can_be_read_again(tmp_path: Path) -> None:
    with piped(LINES) as stream:
        source = stdin_source(stream, tmp_path / "spool")
        next(iter_rows([source]))
        assert values(source) == values(source) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_the_same_pipe_resumes_where_the_spool_ends(tmp_path: Path) -> None:
    spool_path = tmp_path / "spool"
    spool_path.write_bytes(LINES[:11])
    with piped(LINES) as stream:
        assert values(stdin_source(stream, spool_path)) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert spool_path.read_bytes() == LINES


@pytest.mark.parametrize("other", [LINES.replace(b"2", b"5"), LINES[:8], b""])
def test_another_pipe_is_refused_and_the_spool_kept(tmp_path: Path, other: bytes) -> None:
    spool_path = tmp_path / "spool"
    spool_path.write_bytes(LINES)
    with piped(other) as stream, pytest.raises(ResumeMismatchError) as caught:
        values(stdin_source(stream, spool_path))
    assert caught.value.exit_code == 2
    assert spool_path.read_bytes() == LINES


def test_a_pipe_larger_than_any_buffer_is_kept_whole(tmp_path: Path) -> None:
    content = b"".join(b'{"a":%d}\n' % number for number in range(200_000))
    with piped(content) as stream:
        assert len(values(stdin_source(stream, tmp_path / "spool"))) == 200_000
    assert (tmp_path / "spool").read_bytes() == content


def test_without_a_spool_file_the_pipe_is_read_once() -> None:
    with piped(LINES) as stream:
        assert values(stdin_source(stream, None)) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_utf_16_on_standard_input_is_one_file_level_error(tmp_path: Path) -> None:
    with piped('{"a":1}'.encode("utf-16")) as stream:
        source = stdin_source(stream, tmp_path / "spool")
        with pytest.raises(InputError, match="<stdin> is UTF-16"):
            values(source)


def test_a_dash_is_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(LINES) as stream:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
        (source,) = resolve_inputs(["-"], spool_path=tmp_path / "spool")
        assert values(source) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_a_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        resolve_inputs(["-"])


def test_standard_input_is_jsonl_only_and_given_once() -> None:
    with pytest.raises(InputError, match="read as JSONL, not as csv"):
        resolve_inputs(["-"], "csv")
    with pytest.raises(InputError, match="given twice"):
        resolve_inputs(["-", "-"])


def test_a_spool_file_is_read_without_its_pipe_and_as_it_was_when_opened(tmp_path: Path) -> None:
    path = tmp_path / "stdin.jsonl"
    path.write_bytes(LINES[:12])  # cut in the second line
    path.chmod(0o444)
    spool = StdinSpool.reopened(path)
    source = InputSource(path="-", format="jsonl", size_bytes=None, spool=spool)
    path.chmod(0o644)
    with path.open("ab") as stream:
        stream.write(LINES[12:])
    assert total_bytes([source]) == 12
    first, second = (list(iter_rows([source])) for _ in range(2))
    assert [row.location for row in first] == ["<stdin>:1", "<stdin>:2"]
    assert [row.payload_hash for row in first] == [row.payload_hash for row in second]
    assert path.read_bytes() == LINES
