"""What every writer of an output can do.

Knows rows and lines; not files or formats.
"""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from nanobatch.io.output_lines import OutputLines
from nanobatch.io.output_row import OutputRow


class OutputWriter(ABC):
    """Writes rows in the order given. A context manager: commits, or aborts on an exception."""

    @abstractmethod
    def write(self, row: OutputRow) -> None:
        """Add a row with all its outputs.

        Raises:
            StorageError: A write failed.
        """

    def write_lines(self, lines: OutputLines) -> None:
        """Add the lines of some rows, of flat outputs only; costs less than rows one by one.

        Raises:
            StorageError: A write failed.
        """
        raise NotImplementedError(f"{type(self).__name__} writes rows one by one")

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
