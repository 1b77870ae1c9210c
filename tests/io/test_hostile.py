"""Hostile lines give the expected code, whatever stands around them; no line ever raises."""

import csv
import json
import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobatch.io.duplicate_ids import DuplicateIds
from nanobatch.io.input_row import InputRow
from nanobatch.io.jsonl import JsonlRow
from nanobatch.io.sources import resolve_inputs
from nanobatch.request import Request, RowError, RowIndex
from tests.io.row_files import CASES, code_of, parser, read, write_bytes

HOSTILE = CASES / "hostile.jsonl"
GOOD_LINE = b'{"prompt": "Count:", "max_tokens": 4}'
NEEDS_A_TOKENIZER = "prompt_too_long"


@cache
def hostile_lines() -> tuple[bytes, ...]:
    return tuple(HOSTILE.read_bytes().split(b"\n"))


@cache
def expected_codes() -> dict[int, set[str]]:
    with (CASES / "hostile.expected.csv").open(newline="") as stream:
        return {
            int(row["line"]): set(row["expected"].replace(NEEDS_A_TOKENIZER, "ok").split("|"))
            for row in csv.DictReader(stream)
        }


def codes_by_line(rows: list[InputRow]) -> dict[int, str]:
    row_parser = parser()
    codes = {}
    with DuplicateIds() as ids:
        for row in rows:
            code = code_of(row_parser.parse(row))
            custom_id = row_parser.row_id(row) if row_parser.is_batch_line(row) else None
            if custom_id is not None and ids.first_use(
                custom_id, row.row_index, location=row.location
            ):
                code = "duplicate_id"
            codes[row.line] = code
    return codes


def test_every_hostile_line_gives_an_expected_code() -> None:
    codes = codes_by_line(read(HOSTILE))
    unexpected = {
        line: (codes.get(line, "blank"), expected)
        for line, expected in expected_codes().items()
        if codes.get(line, "blank") not in expected
    }
    assert unexpected == {}


@pytest.mark.parametrize("seed", range(3))
def test_hostile_lines_shuffled_and_spliced_into_good_ones_give_the_same(
    tmp_path: Path, seed: int
) -> None:
    generator = random.Random(seed)
    lines = [(line, number) for number, line in enumerate(hostile_lines(), 1)]
    lines += [(GOOD_LINE, 0)] * 1_000
    generator.shuffle(lines)
    path = write_bytes(tmp_path, b"\n".join(line for line, _ in lines))
    codes = codes_by_line(read(path))
    custom_id_c1 = {35, 54}
    for line_number, (_, number) in enumerate(lines, 1):
        code = codes.get(line_number, "blank")
        if number == 0:
            assert code == "ok"
        elif number in custom_id_c1:
            assert code in {"ok", "duplicate_id"}
        else:
            assert code in expected_codes()[number]
    assert list(codes.values()).count("duplicate_id") == 1


def test_lone_surrogates_are_replaced_and_counted() -> None:
    row_parser = parser()
    rows = read(HOSTILE)
    requests = {row.line: row_parser.parse(row) for row in rows}
    request = requests[32]
    assert isinstance(request, Request)
    assert request.prompt == "\ufffd half"
    assert sum(row.num_surrogates for row in rows) == 1


def parse_line(line: bytes) -> Request | RowError | None:
    (source,) = resolve_inputs([str(HOSTILE)])
    row = JsonlRow(RowIndex(0), source, 1, 0, line.strip())
    row_parser = parser()
    result = row_parser.parse(row)
    row_parser.passthrough(row)
    row_parser.row_id(row)
    assert row.payload_hash == row.payload_hash
    return result


MUTANTS = st.tuples(
    st.sampled_from([line for line in hostile_lines() if len(line) < 1_000]),
    st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=4), st.integers(0, 8)), max_size=4),
)


@settings(deadline=None, max_examples=300)
@given(MUTANTS)
def test_a_mutated_line_is_a_request_or_a_fault_and_never_raises(
    mutant: tuple[bytes, list[tuple[int, bytes, int]]],
) -> None:
    line, edits = mutant
    for place, inserted, num_removed in edits:
        line = line[:place] + inserted + line[place + num_removed :]
    assert isinstance(parse_line(line.replace(b"\n", b" ")), Request | RowError)


NAMES = st.sampled_from(
    [
        "prompt",
        "messages",
        "input_ids",
        "body",
        "custom_id",
        "url",
        "id",
        "max_tokens",
        "stop",
        "role",
        "content",
        "tool_calls",
        "tools",
        "logit_bias",
        "n",
        "seed",
        "type",
        "text",
        "chat_template_kwargs",
        "priority",
        "top_k",
        "temperature",
        "arguments",
        "function",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 60_000)
    | st.sampled_from([1.0, 0.5, float("nan"), float("inf"), 10**400, 2**63, -1e308])
    | st.sampled_from(["", "text", "user", "auto", "/v1/completions", "[1]", '{"a": 1}', "\ud800"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=500)
@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_any_object_is_a_request_or_a_fault_and_never_raises(row: dict[str, object]) -> None:
    result = parse_line(json.dumps(row).encode())
    assert isinstance(result, Request | RowError)
    if isinstance(result, RowError):
        assert result.message
        assert "\n" not in result.message
