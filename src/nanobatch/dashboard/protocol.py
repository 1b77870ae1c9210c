"""What the job's loop sees of whoever shows its progress.

Knows two calls, `update` and `close`. Does not know how anything is shown.
"""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from nanobatch.job.stats import JobStats


class Progress(ABC):
    """Shows snapshots of a run; as a context manager it closes itself, also after an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def update(self, stats: JobStats) -> None:
        """Show `stats` soon. Never blocks; call it as often as you like."""

    @abstractmethod
    def close(self, final_stats: JobStats | None = None) -> None:
        """Show the last snapshot for good; later calls do nothing.

        Args:
            final_stats: The last snapshot; None for the newest one given to `update`.
        """


class SilentProgress(Progress):
    """Shows nothing (`--no-progress`)."""

    def update(self, stats: JobStats) -> None:
        """Show nothing."""

    def close(self, final_stats: JobStats | None = None) -> None:
        """Show nothing."""
