"""Signals at any moment of the program's life end it as the contract says."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nanobatch.errors import Stopped
from nanobatch.job.process_end import EXIT_STOPPED
from tests.cli.program import ROOT, Ended, Program

# Sends this process a signal when a module is about to be imported: `NUMBER MODULE ARGUMENTS...`.
DURING_IMPORT = """
import os, sys
class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == awaited:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(number))
number, awaited = sys.argv[1:3]
del sys.argv[1:3]
sys.meta_path.insert(0, Sender())
from nanobatch.__main__ import main
main()
"""

EXIT_CODES = {
    signal.SIGINT: -signal.SIGINT,
    signal.SIGTERM: 75,
    signal.SIGUSR1: 75,
    signal.SIGHUP: 75,
}


def run_python(program: str, *arguments: object, ignored: signal.Signals | None = None) -> Ended:
    """Run a Python program in a process that began with a signal ignored."""

    def ignore() -> None:
        if ignored is not None:
            signal.signal(ignored, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        preexec_fn=ignore,
        capture_output=True,
        check=False,
    )
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr.decode())


def test_the_exit_code_is_that_of_a_stop() -> None:
    assert Stopped.exit_code == EXIT_STOPPED


@pytest.mark.parametrize("number", EXIT_CODES)
@pytest.mark.parametrize("module", ["nanobatch.cli.app", "pyarrow"])
def test_a_signal_during_an_import_stops_without_a_traceback(
    module: str, number: signal.Signals, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\n')
    line = ("run", source, "-o", tmp_path / "out.jsonl")
    ended = run_python(DURING_IMPORT, int(number), module, *line)
    assert ended.code == EXIT_CODES[number]
    assert ended.err == f"stopped by {number.name}: run the same line again to continue\n"
    assert sorted(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("number", EXIT_CODES)
def test_a_signal_that_the_caller_ignores_stays_ignored(number: signal.Signals) -> None:
    ended = run_python(DURING_IMPORT, int(number), "typer", "--version", ignored=number)
    assert (ended.code, ended.err) == (0, "")


# Hangs outside every run, in a call that no signal interrupts.
HANG = """
import ctypes, os, signal, sys
from nanobatch.cli import early_signals
early_signals.PROGRAM_GRACE_S = 0.3
early_signals.handle_early_signals()
mutex = ctypes.create_string_buffer(64)
pid = os.getpid()
if os.fork() == 0:
    import time
    time.sleep(0.2)
    os.kill(pid, int(sys.argv[1]))
    os._exit(0)
while True:
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize("number", EXIT_CODES)
def test_a_hang_outside_every_run_ends_too(number: signal.Signals) -> None:
    ended = run_python(HANG, int(number))
    assert ended.code == EXIT_CODES[number]
    assert ended.err == f"stopped by {number.name}: run the same line again to continue\n"


def test_the_program_inside_another_leaves_its_handlers(program: Program) -> None:
    before = [signal.getsignal(number) for number in EXIT_CODES]
    assert program("--version").code == 0
    assert [signal.getsignal(number) for number in EXIT_CODES] == before
