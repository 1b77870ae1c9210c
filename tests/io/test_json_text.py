"""JSON's dark corners: found, named, and harmless where nobody looks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobatch.io.json_text import MAX_NESTING, JsonError, decode_json

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_clean_json_decodes_as_python_decodes_it(value: object) -> None:
    assert decode_json(json.dumps(value)) == (value, {}, 0)


@given(st.text())
def test_any_text_decodes_or_is_a_json_error(text: str) -> None:
    try:
        decode_json(text)
    except JsonError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON: Expecting value (column 1)"),
        ('{"a": 1', "not valid JSON: Expecting ',' delimiter (column 8)"),
        ('{"a": 1} {"b": 2}', "not valid JSON: text after the value (column 9)"),
        ("[" * 100_000, "nested too deeply; at most 100 levels are read"),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, "nested too deeply; at most 100 levels are read"),
    ],
)
def test_what_is_not_json_says_where(text: str, message: str) -> None:
    with pytest.raises(JsonError) as caught:
        decode_json(text)
    assert str(caught.value) == message


def test_nesting_is_accepted_up_to_the_bound() -> None:
    assert decode_json("[" * MAX_NESTING + "]" * MAX_NESTING).flaws == {}
    with pytest.raises(JsonError):
        decode_json("[" * (MAX_NESTING + 1) + "]" * (MAX_NESTING + 1))


def test_many_brackets_that_do_not_nest_are_no_nesting() -> None:
    assert decode_json(json.dumps([[{"a": []}]] * 500)).value == [[{"a": []}]] * 500


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("NaN", None, "holds NaN, which is not JSON"),
        ("-Infinity", None, "holds -Infinity, which is not JSON"),
        ("1e400", None, "holds 1e400, beyond any float"),
        ("9" * 5000, "9" * 5000, "holds an integer of 5,000 digits; at most 4,300 are read"),
        ('{"b":1,"b":2}', {"b": 2}, "has a member 'b' that is given twice"),
        (
            '[0,{"b":[NaN]}]',
            [0, {"b": [None]}],
            "has a member 'b' that holds NaN, which is not JSON",
        ),
    ],
)
def test_a_flaw_is_named_by_the_top_level_key_that_holds_it(
    text: str, value: object, reason: str
) -> None:
    decoded = decode_json(f'{{"a": {text}, "c": 3}}')
    assert decoded == ({"a": value, "c": 3}, {"a": reason}, 0)


def test_of_duplicate_keys_the_last_stays() -> None:
    decoded = decode_json('{"a": 1, "b": 2, "a": NaN}')
    assert decoded == ({"a": None, "b": 2}, {"a": "is given twice"}, 0)


def test_a_flaw_in_a_list_has_no_key() -> None:
    assert decode_json("[NaN]") == ([None], {"": "holds NaN, which is not JSON"}, 0)


def test_lone_surrogates_become_replacement_characters_and_are_counted() -> None:
    decoded = decode_json(r'{"a\ud800": ["\udfff\ud83d\ude00", {"b": "\uDBFF."}]}')
    assert decoded == ({"a\ufffd": ["\ufffd\U0001f600", {"b": "\ufffd."}]}, {}, 3)


def test_integers_up_to_the_bound_are_exact() -> None:
    digits = "9" * 4300
    assert decode_json(f'{{"a": {digits}}}') == ({"a": int(digits)}, {}, 0)
