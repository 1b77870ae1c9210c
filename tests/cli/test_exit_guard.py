"""A finished program ends at once, with its code, whatever libraries left behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from nanobatch.cli.exit_guard import EXIT_GRACE_S
from nanobatch.job.process_end import STOP_SIGNALS
from tests.cli.program import ROOT, Ended

MAIN = """
import sys
from nanobatch.__main__ import main
main()
"""
THREAD_THAT_NEVER_ENDS = """
import threading
threading.Thread(target=threading.Event().wait).start()
"""
LIBRARY_WITH_AN_EXIT_FUNCTION = """
import atexit, sys
class Library:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            sys.meta_path.remove(self)
            atexit.register(at_exit)
sys.meta_path.insert(0, Library())
"""
HANGING_EXIT_FUNCTION = (
    LIBRARY_WITH_AN_EXIT_FUNCTION
    + """
import time
def at_exit():
    time.sleep(60)
"""
)
HANGING_MODULE = """
import sys
class Module:
    def __del__(self):
        while True:
            pass
sys.module = Module()
"""
CHILD_THAT_NEVER_ENDS = (
    THREAD_THAT_NEVER_ENDS
    + """
import subprocess
subprocess.Popen(["sleep", "60"])
"""
)


def timed(program: str, *arguments: object) -> tuple[Ended, float]:
    """Run a Python program; return how it ended and the seconds after its last line."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    out = process.stdout.readline()
    start_s = time.monotonic()
    rest, err = process.communicate(timeout=30)
    seconds = time.monotonic() - start_s
    return Ended(code=process.returncode, out=out + rest, err=err.decode()), seconds


@pytest.mark.parametrize(
    "library",
    [THREAD_THAT_NEVER_ENDS, HANGING_EXIT_FUNCTION, HANGING_MODULE, CHILD_THAT_NEVER_ENDS],
    ids=["thread", "exit function", "module", "child"],
)
def test_nothing_holds_up_the_end(library: str) -> None:
    ended, seconds = timed(library + MAIN, "--version")
    assert (ended.code, ended.err) == (0, "")
    assert seconds < EXIT_GRACE_S + 1


def test_the_code_is_the_one_that_was_earned() -> None:
    ended, _ = timed("print(flush=True)" + THREAD_THAT_NEVER_ENDS + MAIN, "run", "--nonsense")
    assert (ended.code, ended.err.splitlines()[0]) == (2, "error: no such option: --nonsense")


def test_exit_functions_of_libraries_run_and_their_output_is_kept() -> None:
    library = LIBRARY_WITH_AN_EXIT_FUNCTION + "\ndef at_exit():\n    sys.stdout.write('closed')\n"
    ended, _ = timed(library + MAIN, "--version")
    assert (ended.code, ended.out.splitlines()[1:]) == (0, [b"closed"])


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_after_all_is_done_changes_no_exit_code(number: signal.Signals) -> None:
    send = f"import os\ndef at_exit():\n    os.kill(os.getpid(), {int(number)})\n"
    ended, _ = timed(LIBRARY_WITH_AN_EXIT_FUNCTION + send + MAIN, "--version")
    assert (ended.code, ended.err) == (0, "")
