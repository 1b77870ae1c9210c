"""What the measurement asks of an engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nanobatch.bench.workloads import Workload

OnTokens = Callable[[int], None]
"""Called after each step with the tokens generated so far, where somebody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What an engine says that it did in one run.

    Attributes:
        output_lens: Tokens generated for each prompt, in the workload's order.
        num_prefill_tokens: Prompt tokens computed.
        num_cached_tokens: Prompt tokens taken from a prefix cache.
    """

    output_lens: Sequence[int]
    num_prefill_tokens: int
    num_cached_tokens: int


PreparedRun = Callable[[OnTokens | None], Counts]
"""One run of a workload, ready to be timed; returns when the last token is on the host."""


class MeasuredEngine(Protocol):
    """A loaded engine."""

    @property
    def version(self) -> str:
        """Version of the engine's package."""
        ...

    def prepare(self, workload: Workload) -> PreparedRun:
        """Return a run of the workload that starts with an empty prefix cache."""
        ...

    def warm_up(self, workload: Workload) -> None:
        """Do what makes the first measured run as fast as the later ones."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...
