import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobatch.io import json_lines
from nanobatch.io.json_lines import decode_clean_objects
from nanobatch.io.json_text import JsonError, decode_json

CLEAN = [
    b'{"a":1}',
    b"{}",
    b'{"a" : 1, "b"\t:\t"x: y"}',
    b'{"a":{"a":[{"a":1},[{"b":2.5}]]},"b":[]}',
    '{"ä":"日本 \u2028"}'.encode(),
]
FLAWED = [
    b'{"a":1,"a":2}',
    b'{"a":1,"a" :2}',
    b'{"a":1,"\\u0061":2}',
    b'{"x":{"a":1,"a":2}}',
    b'{"x":[[{"a":1,"b":2,"a":3}]]}',
    b'{"a":NaN}',
    b'{"a":-Infinity}',
    b'{"a":1e400}',
    b'{"a":' + b"1" * 5000 + b"}",
    b'{"a":"\\ud83d"}',
    b'{"a":' + b"[" * 100 + b"]" * 100 + b"}",
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a":"\xff"}',
    b'{"a":[1',
    b'2]},{"b":1}',
    b'{"a":1},{"b":2}',
    b'{"a":1}x',
    b"[1]",
    b"1",
    b"null",
    b"x",
    b'"',
]
COLONS_IN_TEXT = b'{"a":"she said: \\"b\\": 1 : 2"}'

_TEXT = st.text(max_size=4)
_SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT
_MEMBERS = st.dictionaries(_TEXT, _SCALAR, max_size=3)
_OBJECT = st.dictionaries(_TEXT, _SCALAR | _MEMBERS | st.lists(_MEMBERS, max_size=2), max_size=3)


def alone(line: bytes) -> Any:
    """Return what a line is if `decode_json` finds no flaw in it, else None."""
    try:
        decoded = decode_json(line.decode())
    except (JsonError, UnicodeDecodeError):
        return None
    is_clean = not decoded.flaws and not decoded.num_surrogates
    return decoded.value if is_clean and isinstance(decoded.value, dict) else None


def test_clean_lines_are_decoded_together() -> None:
    assert decode_clean_objects(CLEAN) == [json.loads(line) for line in CLEAN]


@pytest.mark.parametrize("flawed", FLAWED, ids=lambda line: line[:20].decode("latin-1"))
def test_a_flawed_line_is_left_out_and_its_neighbours_are_not(flawed: bytes) -> None:
    assert decode_clean_objects([flawed]) == [None]
    lines = [CLEAN[0], flawed, *CLEAN]
    expected = [alone(CLEAN[0]), None, *map(alone, CLEAN)]
    assert decode_clean_objects(lines) == expected


def test_flawed_lines_do_not_add_up_to_a_clean_one() -> None:
    assert decode_clean_objects(FLAWED) == [None] * len(FLAWED)


def test_colons_in_a_text_leave_the_other_lines_alone() -> None:
    decoded = decode_clean_objects([*CLEAN, COLONS_IN_TEXT])
    assert decoded[:-1] == [json.loads(line) for line in CLEAN]
    assert decoded[-1] is None  # may have a key twice: who decodes it alone will see


def test_many_lines_are_counted_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MAX_BLOCK_BYTES", 20)
    long = b'{"a":"' + b"x" * 20 + b'"}'
    assert decode_clean_objects([*CLEAN[:2], long, CLEAN[0]]) == [{"a": 1}, {}, None, {"a": 1}]


@settings(max_examples=25)
@given(st.lists(_OBJECT, min_size=1, max_size=4))
def test_what_is_decoded_together_is_what_each_line_is(rows: list[dict[str, Any]]) -> None:
    lines = [json.dumps(row, ensure_ascii=False).encode(errors="replace") for row in rows]
    together = decode_clean_objects(lines)
    assert all(
        value is None or value == alone(line) for line, value in zip(lines, together, strict=True)
    )


@settings(max_examples=25)
@given(st.text(alphabet='{}[]":, a1\\u\t'), st.text(alphabet='{}[]":, a1\\u\t'))
def test_nothing_is_taken_that_decoding_alone_would_refuse(one: str, other: str) -> None:
    lines = [line.strip().encode() or b"{}" for line in (one, "{" + one + "}", other)]
    together = decode_clean_objects(lines)
    assert all(
        value is None or value == alone(line) for line, value in zip(lines, together, strict=True)
    )
