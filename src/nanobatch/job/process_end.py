"""How the process ends when it must end now: one line, no children left, the code of a stop.

Knows exit codes (contract.md, promise 19) and how to find children; not why the process stops.
Imports nothing that takes time, because the program uses it before anything else.
"""

import _thread
import contextlib
import os
import select
import signal
import time

TYPE_CHECKING = False  # as `typing` has it, without importing typing
if TYPE_CHECKING:
    from typing import NoReturn

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
EXIT_STOPPED = 75
_STDERR = 2
_is_ending = _thread.allocate_lock()


def end_process(number: int, reason: str) -> "NoReturn":
    """End this process because of a signal; never returns.

    SIGINT ends it by SIGINT's default action, for shells and make look for a child that died of
    it; any other signal ends it with 75. Nothing is flushed and no `finally` runs. May be called in
    any thread, also in two at once: the line is printed once.

    Args:
        number: The signal.
        reason: What the line says stopped it.
    """
    if _is_ending.acquire(blocking=False):
        _print(f"stopped by {reason}: run the same line again to continue\n")
    else:
        time.sleep(1.0)  # for the thread that is at it
    kill_descendants()
    if number == signal.SIGINT:
        _restore_default_action(number)
        os.kill(os.getpid(), number)
    os._exit(EXIT_STOPPED)


def kill_descendants() -> None:
    """Send SIGKILL to every process that this one started, and to those that they started."""
    for process in _descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it ended by itself
            os.kill(process, signal.SIGKILL)


def _descendants(process: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208  (pathlib takes time)
            with open(f"/proc/{process}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                children.extend(map(int, file.read().split()))
    return [*children, *(found for child in children for found in _descendants(child))]


def _print(line: str) -> None:
    """Write to standard error unless that would block: nobody may read it any more."""
    with contextlib.suppress(OSError):
        if select.select([], [_STDERR], [], 0)[1]:
            os.write(_STDERR, line.encode())


def _restore_default_action(number: int) -> None:
    try:
        signal.signal(number, signal.SIG_DFL)
    except ValueError:  # Python lets only the main thread, which may be stuck
        import ctypes

        ctypes.CDLL(None).signal(number, None)
