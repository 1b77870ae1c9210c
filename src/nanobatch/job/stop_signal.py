"""Turns the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP into a request to stop in good order.

While a run generates, a signal only sets a flag that the loop reads between steps, so that
what is finished gets recorded. Before and after that there is nothing to save that is not
already on disk, so the signal raises `Stopped` where it arrives. A second signal ends the
process at once.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nanobatch.errors import Stopped

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class StopSignal:
    """Whether a signal asked the run to stop.

    Attributes:
        received: The first stop signal, or None.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._is_deferred = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle stop signals inside the block; ignored ones (nohup) stay ignored."""
        previous = {}
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside the block a first signal sets `received` and nothing else."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = signal.Signals(number)
        if not self._is_deferred:
            raise Stopped(
                f"stopped by {self.received.name}", hint="run the same line again to continue"
            )


def exit_code_of(received: signal.Signals) -> int:
    """Return 75, or for SIGINT its negative number: the process dies of it, as shells expect."""
    return -signal.SIGINT if received is signal.SIGINT else Stopped.exit_code
