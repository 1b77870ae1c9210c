"""One line of an output before it has a format, and what writes it.

Knows the fields that every format shares; not files or formats.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import pyarrow as pa

from nanobatch.request import RequestOutput

OK = "ok"
ERROR = "error"
NO_PASSTHROUGH: Mapping[str, object] = {}


class OutputRow:
    """One sample of one input row, with what passes through from the input.

    A plain class: one is made per row, and a dataclass costs three times as much.

    Attributes:
        id: The row's id, or None.
        output: What the engine said, or the error that took its place.
        error_message: The error's message, beginning with file:line; None for an answer.
        passthrough: Pass-through values by input name.
        arrow_row: Where the row lies in an Arrow batch; the Parquet writer then copies columns
            with their types instead of reading `passthrough`.
    """

    __slots__ = ("arrow_row", "error_message", "id", "output", "passthrough")

    def __init__(
        self,
        id: str | None,
        output: RequestOutput,
        *,
        error_message: str | None = None,
        passthrough: Mapping[str, object] = NO_PASSTHROUGH,
        arrow_row: tuple[pa.RecordBatch, int] | None = None,
    ) -> None:
        self.id = id
        self.output = output
        self.error_message = error_message
        self.passthrough = passthrough
        self.arrow_row = arrow_row


class OutputWriter(ABC):
    """Writes rows in the order given. A context manager: commits, or aborts on an exception."""

    @abstractmethod
    def write(self, row: OutputRow) -> None:
        """Add a row.

        Raises:
            StorageError: A write failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Make the output appear complete under its name.

        Raises:
            StorageError: A write failed; nothing appears.
        """

    @abstractmethod
    def abort(self) -> None:
        """Leave no trace of what was written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception_type is None:
            self.close()
        else:
            self.abort()


def stop_reason_text(output: RequestOutput) -> str | None:
    """Return the stop reason as text: a stop token's id becomes its digits."""
    return None if output.stop_reason is None else str(output.stop_reason)
