from dataclasses import replace

import pytest

from nanobatch.dashboard.text import (
    format_count,
    format_duration,
    format_gib,
    format_percent,
    format_plural,
    format_rate,
    format_remaining,
    format_rows_done,
    format_share,
    kv_in_use,
)
from nanobatch.job.stats import Phase
from tests.dashboard.snapshots import EMPTY, RUNNING


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (42.4, "42s"),
        (59.6, "1m00s"),
        (250.0, "4m10s"),
        (3_600.0, "1h00m"),
        (25_500.0, "7h05m"),
        (183_600.0, "2d03h"),
    ],
)
def test_a_duration_is_written_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0, "0.0 %"), (0.29, "29.0 %"), (0.712, "71.2 %"), (0.99999, "99.9 %"), (1.0, "100.0 %")],
)
def test_a_share_is_never_rounded_up_to_all(fraction: float, text: str) -> None:
    assert format_percent(fraction) == text


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(0.0, "0"), (7.34, "7.3"), (99.96, "100"), (3_310.4, "3,310")],
)
def test_a_slow_rate_keeps_a_decimal(per_s: float, text: str) -> None:
    assert format_rate(per_s) == text


def test_counts_and_sizes_are_grouped() -> None:
    assert format_count(1_234_567) == "1,234,567"
    assert format_gib(61 << 30) == "61.0"
    assert format_plural(1, "error") == "1 error"
    assert format_plural(1_200, "error") == "1,200 errors"


def test_rows_done_name_the_total_once_it_is_known() -> None:
    assert format_rows_done(RUNNING) == "6,140/10,000 rows"
    assert format_rows_done(replace(RUNNING, num_rows_total=None)) == "6,140 rows"


def test_a_phase_without_a_known_share_tells_its_seconds() -> None:
    loading = replace(RUNNING, phase=Phase.LOADING)
    assert format_share(loading) == "9s"
    assert format_share(replace(RUNNING, input_fraction=0.0)) == "11m55s"
    assert format_share(EMPTY) == "0s"


def test_finalizing_tells_the_share_of_the_output_that_is_written() -> None:
    finalizing = replace(RUNNING, phase=Phase.FINALIZING, input_fraction=1.0, finalize_fraction=0.4)
    assert format_share(finalizing) == "40.0 %"


def test_the_time_left_is_told_only_while_rows_run() -> None:
    assert format_remaining(RUNNING) == "ETA 4m10s"
    assert format_remaining(replace(RUNNING, eta_s=None)) == ""
    assert format_remaining(replace(RUNNING, phase=Phase.STOPPED)) == ""


def test_cached_blocks_are_not_in_use() -> None:
    assert kv_in_use(RUNNING) == (1_004 + 310) / 2_048
    assert kv_in_use(EMPTY) == 0.0
