from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from rich.style import Style

from nanobatch.dashboard.bars import (
    ASCII_GLYPHS,
    COLOR_GLYPHS,
    MONO_GLYPHS,
    progress_bar,
    pulse_bar,
    sparkline,
    split_width,
    stacked_bar,
)

PLAIN = Style()


def joined(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def test_a_progress_bar_is_full_only_when_everything_is_done() -> None:
    def draw(fraction: float) -> str:
        return joined(progress_bar(fraction, 4, glyphs=ASCII_GLYPHS, style=PLAIN))

    drawn = [draw(fraction) for fraction in (0.0, 0.5, 0.99, 1.0, 1.2)]
    assert drawn == ["----", "##--", "###-", "####", "####"]


def test_a_pulse_runs_through_the_bar_and_comes_again() -> None:
    def draw(elapsed_s: float) -> str:
        return joined(pulse_bar(elapsed_s, 6, glyphs=ASCII_GLYPHS, style=PLAIN))

    drawn = [draw(tick / 8) for tick in range(8)]
    assert drawn == ["------", *("-" * i + "#" + "-" * (5 - i) for i in range(6)), "------"]


@given(
    amounts=st.lists(st.integers(0, 10**9), min_size=4, max_size=4),
    width=st.integers(4, 200),
)
def test_a_split_fills_the_width_and_hides_nothing(amounts: list[int], width: int) -> None:
    widths = split_width(amounts, width)
    assert sum(widths) == (width if any(amounts) else 0)
    assert [cells > 0 for cells in widths] == [amount > 0 for amount in amounts]


def test_a_stacked_bar_shares_its_width_in_proportion() -> None:
    bar = stacked_bar((4, 2, 1, 1), 8, glyphs=MONO_GLYPHS, styles=[PLAIN] * 4)
    assert joined(bar) == "████▓▓▒░"


def test_a_stacked_bar_of_nothing_is_its_last_part() -> None:
    bar = stacked_bar((0, 0, 0, 0), 8, glyphs=MONO_GLYPHS, styles=[PLAIN] * 4)
    assert joined(bar) == "░░░░░░░░"


def test_a_sparkline_goes_from_zero_to_the_highest_of_the_newest_values() -> None:
    assert sparkline((99.0, 0.0, 1.0, 3.5, 7.0), 4, glyphs=COLOR_GLYPHS) == "▁▂▅█"


def test_a_sparkline_of_zeros_is_its_lowest_line() -> None:
    assert sparkline((0.0, 0.0), 5, glyphs=COLOR_GLYPHS) == "▁▁"
    assert sparkline((), 5, glyphs=COLOR_GLYPHS) == ""
    assert sparkline((1.0,), 0, glyphs=COLOR_GLYPHS) == ""
