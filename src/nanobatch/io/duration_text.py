"""Durations as ISO 8601 text: no digit is lost, and the unit is part of the value.

Knows numbers and text only. A JSON number of seconds would not do: a double has 16 digits, a
count of nanoseconds 19.
"""

_NANOSECONDS_PER_SECOND = 1_000_000_000


def duration_text(num_nanoseconds: int) -> str:
    """Return a duration in seconds, such as `PT0.000000005S`; a minus stands in front."""
    seconds, rest = divmod(abs(num_nanoseconds), _NANOSECONDS_PER_SECOND)
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{'-' if num_nanoseconds < 0 else ''}PT{seconds}{fraction}S"
