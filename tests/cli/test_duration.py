"""Durations are read exactly; what is none is refused with the option's name."""

import pytest

from nanobatch.cli.duration import parse_duration
from nanobatch.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("45m", 2700.0),
        ("7h30m", 27_000.0),
        ("1d2h", 93_600.0),
        ("1d2h3m4s", 93_784.0),
        ("1d4s", 86_404.0),
        ("90", 90.0),
        ("0.5", 0.5),
        ("1.5h", 5400.0),
        ("100m", 6000.0),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration("--stop-after", text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "-5s", "5 s", "30m7h", "1h1h", "7:30:00", "5S", "h", ".5", "1e3", "inf"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_duration("--stop-after", text)
    assert refused.value.message == f"--stop-after is {text!r}, which is no duration"
    assert refused.value.hint == "write 90s, 45m, 7h30m or 1d2h; a number alone is seconds"


@pytest.mark.parametrize("text", ["0", "0s", "0h0m", "9" * 400])
def test_no_time_and_endless_time_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_duration("--row-timeout", text)
    assert refused.value.message == f"--row-timeout is {text}; it must be above 0 seconds"
