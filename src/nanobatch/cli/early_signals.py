"""What a stop signal does while no run can take it: the process ends as contract.md says.

Python's own defaults are 143 for SIGTERM, which batch systems read as a failure, and a
traceback for SIGINT, also in the middle of an import. `job.stop_signal` takes over while a job
runs. Imports nothing that takes time, because every import is time without handlers.

Before `handle_early_signals` lie some hundredths of a second in which the interpreter starts and
its defaults hold; nothing is begun then. At the other end `exit_guard` takes over.
"""

import signal

from nanobatch.job.process_end import STOP_SIGNALS, end_process

PROGRAM_GRACE_S = 9.0
"""More than a run's own watchdog takes with its last actions; less than contract.md's ten."""


def handle_early_signals() -> None:
    """Let stop signals end this process well from now on, except those that are ignored (nohup).

    A watchdog sees them even if the main thread does not, and goes on watching during a run
    and after it: what comes between the run's end and the process's may hang too.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    from nanobatch.job.watchdog import TIME_LIMIT_SIGNAL, Watchdog

    reasons = {int(number): number.name for number in STOP_SIGNALS}
    reasons[TIME_LIMIT_SIGNAL] = "--stop-after"
    Watchdog(reasons, grace_s=PROGRAM_GRACE_S).install()


def _end(number: int, _frame: object) -> None:
    end_process(number, signal.Signals(number).name)
