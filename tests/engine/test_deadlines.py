"""Deadlines: begun once, late in order, and nothing kept of sequences that have ended."""

import numpy as np

from nanobatch.engine.deadlines import Deadlines
from nanobatch.engine.sequence import Sequence
from nanobatch.request import SamplingParams


def sequence(seq_id: int) -> Sequence:
    prompt = np.array([5], dtype=np.int32)
    return Sequence(seq_id, prompt, params=SamplingParams(), max_tokens=1)


def test_whoever_began_first_is_late_first() -> None:
    now_s = 0.0
    deadlines = Deadlines(10.0, clock=lambda: now_s)
    first, second, third = map(sequence, range(3))
    deadlines.begin([first, second])
    now_s = 4.0
    deadlines.begin([third, first])
    now_s = 10.5
    assert deadlines.late() == [(first, 10.5), (second, 10.5)]
    now_s = 14.5
    assert deadlines.late() == [(first, 14.5), (second, 14.5), (third, 10.5)]


def test_a_sequence_that_has_ended_is_forgotten() -> None:
    now_s = 0.0
    deadlines = Deadlines(10.0, clock=lambda: now_s)
    first, second = sequence(0), sequence(1)
    deadlines.begin([first, second])
    deadlines.end(first)
    deadlines.end(first)
    assert len(deadlines) == 1
    now_s = 11.0
    assert deadlines.late() == [(second, 11.0)]
    deadlines.clear()
    assert (len(deadlines), deadlines.late()) == (0, [])


def test_without_a_time_nothing_is_kept() -> None:
    deadlines = Deadlines(None)
    deadlines.begin([sequence(0)])
    assert (len(deadlines), deadlines.late()) == (0, [])
