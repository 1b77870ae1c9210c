"""Turns the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP into a request to stop in good order.

While a run generates, a signal only sets a flag that the loop reads between steps, so that
what is finished gets recorded. Before and after that there is nothing to save that is not
already on disk, so the signal raises `Stopped` where it arrives. A second signal ends the
process at once. `--stop-after` is a timer that sends SIGALRM and from there on the same.

A main thread that cannot take the signal is the business of `watchdog`.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType

from nanobatch.errors import Stopped
from nanobatch.job.process_end import STOP_SIGNALS, end_process
from nanobatch.job.watchdog import GRACE_S, TIME_LIMIT_SIGNAL, Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """Why a run ended early.

    Attributes:
        text: For messages: a signal's name, or the time limit as `--stop-after 7h30m`.
        exit_code: For the process; negative where it should die of that signal.
    """

    text: str
    exit_code: int


class StopSignal:
    """Whether a signal, or the time limit, asked the run to stop.

    Attributes:
        received: The first stop signal, SIGALRM for the time limit, or None.

    Args:
        stop_after_s: Seconds from `installed` on after which the run is to stop; None is never.
        grace_s: Seconds that a run has to end by itself once it is asked to.
    """

    def __init__(self, *, stop_after_s: float | None = None, grace_s: float = GRACE_S) -> None:
        assert stop_after_s is None or stop_after_s > 0, stop_after_s
        self.received: signal.Signals | None = None
        self._stop_after_s = stop_after_s
        self._is_deferred = False
        self._texts = {int(number): number.name for number in STOP_SIGNALS}
        if stop_after_s is not None:
            self._texts[TIME_LIMIT_SIGNAL] = f"--stop-after {_duration_text(stop_after_s)}"
        self._watchdog = Watchdog(self._texts, grace_s=grace_s)

    @property
    def reason(self) -> StopReason | None:
        """Why the run is to stop, or None."""
        if self.received is None:
            return None
        return StopReason(text=self._texts[self.received], exit_code=exit_code_of(self.received))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle stop signals inside the block; ignored ones (nohup) stay ignored.

        Outside the main thread, which alone may handle signals, this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {}
        with self._watchdog.installed():
            try:
                with self.deferred():  # half installed is no moment to raise
                    for number in self._texts:
                        if signal.getsignal(number) is not signal.SIG_IGN:
                            previous[number] = signal.signal(number, self._handle)
                    signal.setitimer(signal.ITIMER_REAL, self._stop_after_s or 0)
                yield
            finally:
                self._is_deferred = True
                signal.setitimer(signal.ITIMER_REAL, 0)
                for number, handler in previous.items():
                    signal.signal(number, handler)
                self._is_deferred = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside the block a first signal sets `received` and nothing else."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def before_end(self, action: Callable[[], None]) -> AbstractContextManager[None]:
        """Inside the block, try an action before the watchdog ends the process; see there."""
        return self._watchdog.before_end(action)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)
            if not self._is_deferred:
                raise Stopped(
                    f"stopped by {self._texts[number]}", hint="run the same line again to continue"
                )
        elif number != TIME_LIMIT_SIGNAL:
            end_process(number, self._texts[number])


def exit_code_of(received: signal.Signals) -> int:
    """Return 75, or for SIGINT its negative number: the process dies of it, as shells expect."""
    return -signal.SIGINT if received is signal.SIGINT else Stopped.exit_code


def _duration_text(seconds: float) -> str:
    """Return a duration as `--stop-after` takes it, such as `7h30m`."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{count:g}{unit}" for count, unit in parts if count)
