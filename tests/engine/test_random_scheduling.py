"""Whatever the configuration, every sequence gets the tokens that it gets alone."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.random_runs import NUM_CONFIGURATIONS, Run


@pytest.mark.slow
def test_every_sequence_gets_what_it_gets_alone_in_2000_random_configurations() -> None:
    events: Counter[str] = Counter()
    for seed in range(NUM_CONFIGURATIONS):
        try:
            events += Run(seed).execute()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    # The test would prove little if the hard cases did not occur.
    for name in (
        "preempted",
        "cached",
        "copied",
        "copied_and_preempted",
        "aborted",
        "nan",
        "cured",
        "ran_ahead",
        "chunked",
        "preempted_with_run_ahead",
        "preempted_in_chunks",
    ):
        assert events[name] >= NUM_CONFIGURATIONS // 50, f"{name} is too rare: {events}"


@given(st.integers(min_value=NUM_CONFIGURATIONS))
@settings(max_examples=30, deadline=None)
def test_every_sequence_gets_what_it_gets_alone_under_any_seed(seed: int) -> None:
    Run(seed).execute()
