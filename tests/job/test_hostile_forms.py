"""The hostile file in every form: compressed, piped, in either shape, in windows, in Parquet."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanobatch.io.input_row import InputRow
from nanobatch.io.readers import iter_rows
from nanobatch.io.sources import resolve_inputs
from tests.job.null_jobs import null_config, read_rows, run_null
from tests.job.test_hostile import (
    CASES,
    Case,
    assert_as_expected,
    hostile_cases,
    model,
    standard_input_from,
)

__all__ = ["model"]

HOSTILE = CASES / "hostile.jsonl"
FORMS = ("jsonl", "gz", "zst", "pipe")


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return what of an OpenAI-shaped line a flat row says, too."""
    error = row["error"]
    return {"id": row["custom_id"], "error_code": None if error is None else error["code"]}


@pytest.mark.parametrize(
    ("form", "shape", "window_rows"),
    [
        *itertools.product(FORMS, ("flat", "openai"), (4096,)),
        *itertools.product(("jsonl", "gz"), ("flat", "openai"), (1, 7)),
    ],
)
def test_hostile_lines_come_out_as_expected_in_every_form(
    form: str,
    shape: str,
    window_rows: int,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = HOSTILE
    if form == "gz":
        source = tmp_path / "hostile.jsonl.gz"
        source.write_bytes(gzip.compress(HOSTILE.read_bytes()))
    elif form == "zst":
        source = tmp_path / "hostile.jsonl.zst"
        with pa.output_stream(source, compression="zstd") as file:
            file.write(HOSTILE.read_bytes())
    output = tmp_path / "out.jsonl"
    inputs = Path("-") if form == "pipe" else source
    config = null_config(model, inputs, output, output_shape=shape, window_rows=window_rows)
    with standard_input_from(HOSTILE), open(0, closefd=False) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run_null(config).exit_code == 3
    rows = read_rows(output)
    if shape == "openai":
        rejected = [row for row in rows if row["error"] is not None]
        assert {row["response"]["status_code"] for row in rejected} == {400}
        rows = [flat(row) for row in rows]
    assert_as_expected(hostile_cases(), rows)


def sound_rows() -> list[tuple[Case, dict[str, Any]]]:
    """Return the hostile rows whose JSON holds no flaw that Parquet could not have."""
    found = []
    for case, row in zip(hostile_cases(), iter_rows(resolve_inputs([str(HOSTILE)])), strict=True):
        fields = row.fields()
        if isinstance(fields, dict) and not row.flaws and not has_inner_flaw(row):
            found.append((case, fields))
    return found


def has_inner_flaw(row: InputRow) -> bool:
    """Return whether a nested object of the row's line names a key twice, or holds a NaN."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    line = next(case[1] for case in hostile_cases() if case[0] == row.line)
    try:
        json.loads(
            line.removeprefix(b"\xef\xbb\xbf"), object_pairs_hook=once, parse_constant=refuse
        )
    except ValueError:
        return True
    return False


def test_hostile_rows_that_parquet_can_hold_come_out_as_expected(
    model: Path,
    tmp_path: Path,
) -> None:
    """Each row is a file of its own, so that every column has the type of its one value."""
    cases, files = [], []
    for case, fields in sound_rows():
        path = tmp_path / f"line-{case[0]:03d}.parquet"
        try:
            pq.write_table(pa.Table.from_pylist([fields]), path)
        except (pa.ArrowException, OverflowError):
            continue
        cases.append(case)
        files.append(path)
    assert len(cases) >= 30
    output = tmp_path / "out.parquet"
    assert run_null(null_config(model, files, output)).exit_code == 3
    assert_as_expected(cases, read_rows(output))
