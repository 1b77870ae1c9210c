"""What a stop signal does while no run can take it: the process ends as contract.md says.

Python's own defaults are 143 for SIGTERM, which batch systems read as a failure, and a
traceback for SIGINT, also in the middle of an import. `job.stop_signal` takes over while a job
runs. Imports nothing that takes time, because every import is time without handlers.
"""

import atexit
import contextlib
import os
import signal

EXIT_STOPPED = 75
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def handle_early_signals() -> None:
    """Let stop signals end this process well, except those that are ignored (nohup).

    Once the interpreter begins to shut down they are ignored: what there was to do is done, and
    the exit code must say how it went. Unloading torch alone takes tenths of a second.
    """
    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, _end)
    # Registered before any library's, so called after theirs.
    atexit.register(_ignore, numbers)


def _end(number: int, _frame: object) -> None:
    name = signal.Signals(number).name
    with contextlib.suppress(OSError):  # that nobody listens is no reason to go on
        os.write(2, f"stopped by {name}: run the same line again to continue\n".encode())
    if number == signal.SIGINT:  # shells and make look for a child that died of it
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(EXIT_STOPPED)


def _ignore(numbers: list[signal.Signals]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
