"""Ends the process some seconds after a stop signal if it has not ended by itself.

Python runs a signal's handler in the main thread, between two bytecodes: not while that thread
sits in a long C call (a kernel, a read from a dead file server, a library being loaded). Its C
handler, however, writes the signal's number to a file descriptor at once
(`signal.set_wakeup_fd`), and a thread of ours waits there.

What this covers: every call that releases the GIL, which torch's operators, file reads and
waits do, and Python code that never looks at the stop flag. What it does not: a C call that holds
the GIL stops every Python thread, this one too, and the process ends when the call returns. The
longest that a run makes is the loading of shared libraries: at most 2.4 s at once in `import torch`
on two cores with a load of ten. Only a second process or a compiled extension could end such a
call, which is more than it is worth: what is finished is on disk, and a SIGKILL loses nothing. A
call that the kernel itself does not interrupt (a dead disk) delays even SIGKILL.

Knows the journal and the run only as actions that it tries before the end.
"""

import contextlib
import ctypes  # noqa: F401  (wanted at the end, when the main thread may hold any import lock)
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from nanobatch.job.process_end import end_process

GRACE_S = 8.0
"""From the first stop signal to the end; with `LAST_ACTIONS_S` less than contract.md's ten."""
LAST_ACTIONS_S = 0.75
TIME_LIMIT_SIGNAL = signal.SIGALRM
"""Sent by the timer of `--stop-after`; it stops a run but never hurries one that stops already."""

_UNINSTALLED = 0
_CREDENTIALS = struct.Struct("3i")  # process, user, group: unix(7)


class _Installation(NamedTuple):
    sender: socket.socket
    previous: int
    thread: threading.Thread


class Watchdog:
    """Sees stop signals whatever the main thread does.

    After a first signal the process has `grace_s` to end by itself; a second signal ends it at
    once. May be nested: each one passes what it saw to the one it replaced, whose time then runs
    too. Signals that are ignored are never seen. Bytes written by a forked child, which
    shares the descriptor, are told by their sender and left alone.

    Args:
        reasons: The signals that stop, and what the last line says of each.
        grace_s: Seconds that the process has.
        last_actions_s: Seconds that the last actions have together after that.
    """

    def __init__(
        self,
        reasons: Mapping[int, str],
        *,
        grace_s: float = GRACE_S,
        last_actions_s: float = LAST_ACTIONS_S,
    ) -> None:
        self._reasons = reasons
        self._grace_s = grace_s
        self._last_actions_s = last_actions_s
        self._last_actions: list[Callable[[], None]] = []
        self._installation: _Installation | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Watch inside the block; outside the main thread, which Python asks for, do nothing."""
        self.install()
        try:
            yield
        finally:
            self.uninstall()

    def install(self) -> None:
        """Begin to watch; see `installed`."""
        if threading.current_thread() is not threading.main_thread():
            return
        receiver, sender = _signal_sockets()
        previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(
            target=self._watch, args=(receiver, previous), name="watchdog", daemon=True
        )
        self._installation = _Installation(sender, previous, thread)
        thread.start()

    def uninstall(self) -> None:
        """End watching; time that runs after a first signal no longer counts."""
        if self._installation is None:
            return
        sender, previous, thread = self._installation
        self._installation = None
        signal.set_wakeup_fd(previous, warn_on_full_buffer=False)
        with sender:
            sender.setblocking(True)
            sender.send(bytes([_UNINSTALLED]))
            thread.join()

    @contextlib.contextmanager
    def before_end(self, action: Callable[[], None]) -> Iterator[None]:
        """Inside the block try `action` before ending the process; what it raises is dropped.

        It runs in a thread of its own and may be cut off at any point.
        """
        self._last_actions.append(action)
        try:
            yield
        finally:
            self._last_actions.remove(action)

    def _watch(self, receiver: socket.socket, previous: int) -> None:
        first: int | None = None
        deadline_s: float | None = None
        while (number := _next_signal(receiver, deadline_s)) != _UNINSTALLED:
            if number is None:
                assert first is not None, "only a signal sets a deadline"
                self._run_last_actions()
                end_process(first, self._reasons[first])
            if number in self._reasons:
                if first is None:
                    first, deadline_s = number, time.monotonic() + self._grace_s
                elif number != TIME_LIMIT_SIGNAL:
                    end_process(number, self._reasons[number])
            _pass_on(number, previous)
        receiver.close()

    def _run_last_actions(self) -> None:
        def run() -> None:
            for action in list(self._last_actions):
                with contextlib.suppress(Exception):
                    action()

        thread = threading.Thread(target=run, daemon=True)
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
            thread.start()
            thread.join(self._last_actions_s)


def _signal_sockets() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a channel that tells who wrote a byte; the second never blocks."""
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    sender.setblocking(False)
    return receiver, sender


def _pass_on(number: int, descriptor: int) -> None:
    """Tell the wakeup descriptor that ours replaced; -1 is none."""
    if descriptor >= 0:
        with contextlib.suppress(OSError):  # its owner closed it, or does not read it
            os.write(descriptor, bytes([number]))


def _next_signal(receiver: socket.socket, deadline_s: float | None) -> int | None:
    """Wait for a signal that this process got; return None at the deadline."""
    while True:
        remaining_s = None if deadline_s is None else deadline_s - time.monotonic()
        if remaining_s is not None and remaining_s <= 0:
            return None
        receiver.settimeout(remaining_s)
        try:
            message, ancillary, _, _ = receiver.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
        except TimeoutError:
            return None
        sender = _CREDENTIALS.unpack(ancillary[0][2])[0]
        if sender == os.getpid():
            return message[0]
