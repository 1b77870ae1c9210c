"""How the code that turns fields into a request says that a row is at fault.

Never leaves `nanobatch.io`: `RowParser.parse` turns it into a `RowError`, which is data.
"""

from nanobatch.request import ErrorCode, RowError

SHOWN_CHARACTERS = 60
MESSAGE_CHARACTERS = 500
"""Longest message of a fault: values are written out, and untrusted ones have no length limit."""


class RowFault(Exception):  # noqa: N818  (what is at fault is the row, not the program)
    """A row cannot become a request.

    Attributes:
        error: What to record for the row.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        if len(message) > MESSAGE_CHARACTERS:
            message = f"{message[:MESSAGE_CHARACTERS]}…"
        self.error = RowError(code=code, message=message)


def shown(value: object) -> str:
    """Return a value as a message shows it: on one line, and short however long it is."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return f"an array of {len(value):,}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= 10**SHOWN_CHARACTERS:
        return f"an integer of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def shown_name(name: str) -> str:
    """Return a name as messages show it: as it is, unless it would break the line or fill it."""
    return name if name.isprintable() and len(name) <= SHOWN_CHARACTERS else shown(name)
