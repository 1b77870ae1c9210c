"""Durations on the command line: `7h30m`, `90s`, `1d2h`, or plain seconds."""

import math
import re

from nanobatch.errors import ConfigError

_SECONDS_PER_UNIT = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"(\d+(?:\.\d+)?)"
_PLAIN_SECONDS = re.compile(_NUMBER)
_UNITS = re.compile("".join(f"(?:{_NUMBER}{unit})?" for unit in _SECONDS_PER_UNIT))


def parse_duration(flag: str, text: str) -> float:
    """Return a duration in seconds.

    Args:
        flag: The option that it is the value of, for the error.
        text: Days, hours, minutes and seconds in this order, each with its unit and none needed;
            a number without a unit is seconds.

    Raises:
        ConfigError: The text is no duration, or not above zero.
    """
    if _PLAIN_SECONDS.fullmatch(text):
        seconds = float(text)
    elif text and (units := _UNITS.fullmatch(text)):
        counts = zip(units.groups(), _SECONDS_PER_UNIT.values(), strict=True)
        seconds = sum(float(count) * length for count, length in counts if count is not None)
    else:
        raise ConfigError(
            f"{flag} is {text!r}, which is no duration",
            hint="write 90s, 45m, 7h30m or 1d2h; a number alone is seconds",
        )
    if not 0.0 < seconds < math.inf:
        raise ConfigError(f"{flag} is {text}; it must be above 0 seconds")
    return seconds
