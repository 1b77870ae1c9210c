"""The hostile file through whole runs: alone, shuffled, and among a thousand good lines."""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.job.null_jobs import null_config, read_rows, run_null, without_cached_tokens
from tests.null_model import write_null_model

CASES = Path(__file__).parent.parent / "cases"
DUPLICATES = {35, 54}
"""Two lines with one custom_id: the later one is the error, whichever that is."""

Case = tuple[int, bytes, str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_null_model(tmp_path_factory.mktemp("model"), context=8192)


def hostile_cases() -> list[Case]:
    """Return line number, bytes and expectation of every hostile line that is a row."""
    lines = (CASES / "hostile.jsonl").read_bytes().split(b"\n")
    with (CASES / "hostile.expected.csv").open(newline="") as file:
        expected = {int(row["line"]): row["expected"] for row in csv.DictReader(file)}
    cases = [(number, line, expected[number]) for number, line in enumerate(lines, 1) if line]
    return [case for case in cases if case[2] != "blank"]


def good_lines(num_lines: int) -> list[bytes]:
    return [
        json.dumps({"id": f"good {index}", "prompt": f"the answer of {index}"}).encode()
        for index in range(num_lines)
    ]


def outcome(row: dict[str, Any]) -> str:
    return row["error_code"] or "ok"


def assert_as_expected(cases: Sequence[Case], rows: Sequence[dict[str, Any]]) -> None:
    seen_duplicate = False
    for (number, line, expected), row in zip(cases, rows, strict=True):
        allowed = expected.split("|")
        if number in DUPLICATES:
            allowed = ["duplicate_id" if seen_duplicate else "ok"]
            seen_duplicate = True
        assert outcome(row) in allowed, (number, line[:100], row)


@contextmanager
def standard_input_from(path: Path) -> Iterator[None]:
    """Read a file as this process's standard input."""
    saved = os.dup(0)
    with path.open("rb") as file:
        os.dup2(file.fileno(), 0)
    try:
        yield
    finally:
        os.dup2(saved, 0)
        os.close(saved)


@pytest.mark.parametrize("window_rows", [1, 7, 4096])
def test_hostile_lines_come_out_as_expected(window_rows: int, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    config = null_config(model, CASES / "hostile.jsonl", output, window_rows=window_rows)
    assert run_null(config).exit_code == 3
    assert_as_expected(hostile_cases(), read_rows(output))


def test_hostile_lines_are_the_same_from_a_pipe(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_file, from_pipe = tmp_path / "file.jsonl", tmp_path / "pipe.jsonl"
    run_null(null_config(model, CASES / "hostile.jsonl", from_file))
    with standard_input_from(CASES / "hostile.jsonl"), open(0, closefd=False) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert run_null(null_config(model, Path("-"), from_pipe)).exit_code == 3
    for one, other in zip(read_rows(from_file), read_rows(from_pipe), strict=True):
        assert {**one, "error_message": None} == {**other, "error_message": None}


@pytest.mark.parametrize("seed", [0, 1])
def test_hostile_lines_among_good_ones_leave_these_unchanged(
    seed: int, model: Path, tmp_path: Path
) -> None:
    random = Random(seed)
    good = good_lines(1000)
    (tmp_path / "good.jsonl").write_bytes(b"\n".join(good))
    alone = tmp_path / "alone.jsonl"
    run_null(null_config(model, tmp_path / "good.jsonl", alone))
    lines: list[Case] = [(0, line, "ok") for line in good]
    for case in random.sample(hostile_cases(), len(hostile_cases())):
        lines.insert(random.randrange(len(lines) + 1), case)
    (tmp_path / "mixed.jsonl").write_bytes(b"\n".join(line for _, line, _ in lines))
    mixed = tmp_path / "mixed.out.jsonl"
    config = null_config(model, tmp_path / "mixed.jsonl", mixed, window_rows=64)
    assert run_null(config).exit_code == 3
    rows = read_rows(mixed)
    assert_as_expected(lines, rows)
    kept = [
        {**row, "row_index": 0}
        for row, (number, _, _) in zip(rows, lines, strict=True)
        if number == 0
    ]
    expected = [{**row, "row_index": 0} for row in read_rows(alone)]
    assert without_cached_tokens(kept) == without_cached_tokens(expected)


def test_pass_through_values_of_hostile_lines_survive(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    run_null(null_config(model, CASES / "hostile.jsonl", output))
    rows = {case[0]: row for case, row in zip(hostile_cases(), read_rows(output), strict=True)}
    assert {key: rows[40][key] for key in ("note", "score", "tags")} == {
        "note": "kept",
        "score": 1.5,
        "tags": ["a", "b"],
    }
    assert rows[55]["id"] == "7"
    assert rows[57]["score"] is None
