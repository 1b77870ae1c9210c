"""How many decode steps are launched at once, by what host and device take."""

import pytest

from nanobatch.engine.chunk_length import MAX_DECODE_STEPS, ChunkLength


def measured(*, host_s: float, step_s: float, num_turns: int = 1) -> ChunkLength:
    """Return a chunk length that has seen turns, each as long as chunk and host together."""
    length = ChunkLength()
    now_s = 0.0
    for _ in range(num_turns):
        num_steps = length.begin_turn(now_s)
        length.note_launch()
        length.note_wait(0.5)
        length.note_device(step_s * num_steps, num_steps)
        now_s += host_s + 0.5
    length.begin_turn(now_s)
    return length


@pytest.mark.parametrize(
    ("host_s", "step_s", "expected"),
    [(0.001, 0.010, 1), (0.0049, 0.010, 1), (0.006, 0.010, 2), (0.001, 0.0009, 3), (1.0, 0.001, 8)],
)
def test_a_chunk_lasts_twice_as_long_as_the_host_needs(
    host_s: float, step_s: float, expected: int
) -> None:
    assert measured(host_s=host_s, step_s=step_s).num_steps == expected
    assert expected <= MAX_DECODE_STEPS


def test_without_measurements_there_is_one_step() -> None:
    length = ChunkLength()
    assert length.begin_turn(0.0) == 1
    length.note_launch()
    assert length.begin_turn(9.0) == 1, "the device is not measured"


def test_a_fixed_length_stays() -> None:
    length = ChunkLength(3)
    length.note_device(1.0, 1)
    assert [length.begin_turn(now_s) for now_s in (0.0, 5.0)] == [3, 3]


def test_turns_without_a_chunk_do_not_count() -> None:
    length = measured(host_s=0.001, step_s=0.010)
    for now_s in (100.0, 200.0):
        assert length.begin_turn(now_s) == 1


def test_one_slow_turn_changes_little_and_many_do() -> None:
    length = measured(host_s=0.004, step_s=0.010, num_turns=20)
    now_s = 1_000.0
    chosen = []
    for _ in range(30):
        chosen.append(length.begin_turn(now_s))
        length.note_launch()
        now_s += 0.018
    assert (chosen[1], chosen[-1]) == (1, 4)
    assert chosen == sorted(chosen)
