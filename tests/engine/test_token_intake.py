"""Which tokens may end some sequence."""

import sys

import numpy as np

from nanobatch.engine.sequence import Sequence
from nanobatch.engine.token_intake import StopTokenTable
from nanobatch.request import SamplingParams


def add(table: StopTokenTable, eos_token_ids: tuple[int, ...]) -> None:
    prompt = np.ones(1, dtype=np.int32)
    table.add(
        Sequence(0, prompt, params=SamplingParams(), max_tokens=1, eos_token_ids=eos_token_ids)
    )


def test_a_table_knows_the_stop_tokens_of_all_sequences_and_no_others() -> None:
    table = StopTokenTable()
    for eos_token_ids in ((), (7,), (2, 30), (7, 2), ()):
        add(table, eos_token_ids)
    token_ids = np.array([0, 2, 7, 29, 30, 31, 1 << 30], dtype=np.int32)
    assert token_ids[table.contain(token_ids)].tolist() == [2, 7, 30]


def test_a_table_holds_on_to_nothing_of_a_sequence() -> None:
    eos_token_ids = tuple(range(3, 9))
    num_references = sys.getrefcount(eos_token_ids)
    table = StopTokenTable()
    add(table, eos_token_ids)
    assert sys.getrefcount(eos_token_ids) == num_references
