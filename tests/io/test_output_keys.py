"""Names of pass-through keys in lines of JSON."""

import json
from typing import Any

import pyarrow as pa

from nanobatch.io.columns import output_columns
from nanobatch.io.output_keys import OutputKeys

COLUMNS = output_columns(pa.schema([("label", pa.large_string())]))


def members(keys: OutputKeys, **values: object) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads('{"own":0' + keys.tail(values))
    del decoded["own"]
    return decoded


def test_keys_keep_their_names_and_order() -> None:
    keys = OutputKeys(COLUMNS, ["own"])
    assert list(members(keys, z=1, label="x", a=None)) == ["z", "label", "a"]
    assert members(keys) == {}


def test_a_key_has_one_name_in_every_row() -> None:
    keys = OutputKeys(COLUMNS, ["id"])
    for _ in range(2):
        assert members(keys, id=1) == {"input_id": 1}
        assert members(keys, input_id=2, id=1) == {"input_input_id": 2, "input_id": 1}


def test_a_name_that_another_key_has_had_is_not_free() -> None:
    keys = OutputKeys(COLUMNS, ["id"])
    assert members(keys, input_id=2) == {"input_id": 2}
    assert members(keys, id=1) == {"input_input_id": 1}


def test_keys_made_of_data_are_not_remembered() -> None:
    keys = OutputKeys(COLUMNS, ["id"])
    for row in range(5000):
        assert members(keys, **{f"user {row}": row}) == {f"user {row}": row}
    assert len(keys._unchanged) == 1000
