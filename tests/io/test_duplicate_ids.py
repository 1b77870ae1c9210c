"""Custom ids: the first use is remembered, for any number of rows in bounded memory."""

import random
from collections.abc import Iterator

import pytest

from nanobatch.io.duplicate_ids import DuplicateIds


@pytest.fixture
def ids() -> Iterator[DuplicateIds]:
    with DuplicateIds() as duplicate_ids:
        yield duplicate_ids


def test_a_later_use_names_the_place_of_the_first(ids: DuplicateIds) -> None:
    assert ids.first_use("a", 0, location="dir/x.jsonl:1") is None
    assert ids.first_use("b", 1, location="dir/x.jsonl:2") is None
    assert ids.first_use("a", 2, location="y:z.jsonl:9") == "dir/x.jsonl:1"
    assert ids.first_use("a", 3, location="y:z.jsonl:10") == "dir/x.jsonl:1"


def test_asking_again_for_the_first_row_is_no_duplicate(ids: DuplicateIds) -> None:
    for _ in range(2):
        assert ids.first_use("a", 0, location="x.jsonl:1") is None


@pytest.mark.parametrize("custom_id", ["", "\0", "\ud800", "ä" * 100_000])
def test_any_text_is_an_id(ids: DuplicateIds, custom_id: str) -> None:
    assert ids.first_use(custom_id, 0, location="x.jsonl:1") is None
    assert ids.first_use(custom_id, 1, location="x.jsonl:2") == "x.jsonl:1"


def test_many_ids_agree_with_a_dictionary(ids: DuplicateIds) -> None:
    generator = random.Random(0)
    places: dict[str, str] = {}
    for row_index in range(20_000):
        custom_id = str(generator.randrange(15_000))
        location = f"{row_index % 3}.jsonl:{row_index}"
        assert ids.first_use(custom_id, row_index, location=location) == places.get(custom_id)
        places.setdefault(custom_id, location)
