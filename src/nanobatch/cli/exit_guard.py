"""The end of the program: with the code it earned and soon, whatever libraries do meanwhile.

Once the command has returned, all that is ours is written. What is left belongs to libraries:
threads that Python waits for, functions they registered for the end, and the unloading of
modules and of their C++ statics, which takes torch alone tenths of a second and is where a
program that is finished hangs, or crashes and loses its exit code.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time

from nanobatch.job.process_end import STOP_SIGNALS, kill_descendants

EXIT_GRACE_S = 1.0
"""For the threads and exit functions of libraries, which end within milliseconds as a rule."""


class ExitGuard:
    """Ends the process with a code once that is known.

    Make it before any library is loaded: exit functions run in the reverse order, and this one
    ends the process.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        atexit.register(self._end)

    def leave(self, code: int) -> None:
        """Let the process end with this code when libraries had their second.

        Stop signals are ignored from now on: what there was to do is done, and the code must say
        how it went.
        """
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self._code = code
        threading.Thread(target=_end_late, args=(code,), name="exit", daemon=True).start()

    def _end(self) -> None:
        if self._code is None:  # an exception is on its way: Python prints it
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(self._code)


def _end_late(code: int) -> None:
    time.sleep(EXIT_GRACE_S)
    kill_descendants()
    os._exit(code)  # flushing may be what the main thread hangs in
