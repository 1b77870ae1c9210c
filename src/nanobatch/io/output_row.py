"""One row of an output before it has a format or a shape.

Knows the fields that all of them share; not files or formats.
"""

from collections.abc import Mapping

import pyarrow as pa

from nanobatch.request import RequestOutputs, RowError

OK = "ok"
ERROR = "error"
NO_PASSTHROUGH: Mapping[str, object] = {}


class OutputRow:
    """One input row with all its outputs and what passes through from the input.

    A plain class: one is made per row, and a dataclass costs three times as much.

    Attributes:
        id: The row's id, or None.
        outputs: What the engine said, one output per sample, or the error that took its place.
        location: `file:line` of the input row; needed only where an output is an error.
        passthrough: Pass-through values by input name.
        arrow_row: Where the row lies in an Arrow batch; the Parquet writer then copies columns
            with their types instead of reading `passthrough`.
        is_chat: Whether the row asks for a turn of a chat rather than for the rest of a text;
            only OpenAI's shape tells them apart.
    """

    __slots__ = ("arrow_row", "id", "is_chat", "location", "outputs", "passthrough")

    def __init__(
        self,
        id: str | None,
        outputs: RequestOutputs,
        location: str | None = None,
        passthrough: Mapping[str, object] = NO_PASSTHROUGH,
        arrow_row: tuple[pa.RecordBatch, int] | None = None,
        is_chat: bool = False,
    ) -> None:
        self.id = id
        self.outputs = outputs
        self.location = location
        self.passthrough = passthrough
        self.arrow_row = arrow_row
        self.is_chat = is_chat

    def error_message(self, error: RowError) -> str:
        """Return an error's message as outputs show it: it begins with file:line."""
        return error.message if self.location is None else f"{self.location}: {error.message}"


def stop_reason_text(stop_reason: str | int | None) -> str | None:
    """Return a stop reason as text: a stop token's id becomes its digits."""
    return None if stop_reason is None else str(stop_reason)
