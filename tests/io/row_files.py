"""Inputs for the tests of readers and rows: files written, read and parsed in one call."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from nanobatch.io.input_row import InputRow
from nanobatch.io.readers import iter_rows
from nanobatch.io.rows import RowParser
from nanobatch.io.sources import resolve_inputs
from nanobatch.job_config import InputFormat, RowConfig
from nanobatch.request import Request, RowError, SamplingParams

CASES = Path(__file__).parent.parent / "cases"
VOCAB_SIZE = 49_152


def write_bytes(folder: Path, content: bytes, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def write_jsonl(folder: Path, rows: Iterable[object], name: str = "rows.jsonl") -> Path:
    return write_bytes(folder, "".join(f"{json.dumps(row)}\n" for row in rows).encode(), name)


def read(
    *paths: Path, input_format: InputFormat | None = None, delimiter: str = ","
) -> list[InputRow]:
    names = [str(path) for path in paths]
    return list(iter_rows(resolve_inputs(names, input_format, delimiter=delimiter)))


def parser(
    row_config: RowConfig | None = None, defaults: SamplingParams | None = None
) -> RowParser:
    return RowParser(row_config or RowConfig(), defaults or SamplingParams(), vocab_size=VOCAB_SIZE)


def parse_file(path: Path, row_config: RowConfig | None = None) -> list[Request | RowError]:
    row_parser = parser(row_config)
    return [row_parser.parse(row) for row in read(path)]


def parse_row(
    folder: Path, row: Mapping[str, object], row_config: RowConfig | None = None
) -> Request | RowError:
    (result,) = parse_file(write_jsonl(folder, [row]), row_config)
    return result


def request_of(
    folder: Path, row: Mapping[str, object], row_config: RowConfig | None = None
) -> Request:
    result = parse_row(folder, row, row_config)
    assert isinstance(result, Request), result
    return result


def code_of(result: Request | RowError) -> str:
    return result.code.value if isinstance(result, RowError) else "ok"


def body_line(body: object, **frame: object) -> dict[str, object]:
    return {"custom_id": "c", **frame, "body": body}
