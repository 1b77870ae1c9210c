"""The first signal asks for an orderly end, the second ends at once."""

import os
import signal
import subprocess
import sys

import pytest

from nanobatch.errors import Stopped
from nanobatch.job.stop_signal import STOP_SIGNALS, StopSignal, exit_code_of
from tests.project.source_tree import ROOT


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_deferred_signal_only_leaves_a_note(number: signal.Signals) -> None:
    stop = StopSignal()
    with stop.installed(), stop.deferred():
        os.kill(os.getpid(), number)
        assert stop.received is number


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_raises_where_there_is_nothing_to_save(number: signal.Signals) -> None:
    stop = StopSignal()
    with pytest.raises(Stopped) as raised, stop.installed():
        os.kill(os.getpid(), number)
    assert raised.value.message == f"stopped by {number.name}"
    assert raised.value.hint == "run the same line again to continue"
    assert raised.value.exit_code == 75
    assert stop.received is number


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with StopSignal().installed():
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopSignal()
        with stop.installed():
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_after_the_deferred_block_a_signal_raises_again() -> None:
    stop = StopSignal()
    with pytest.raises(Stopped), stop.installed():
        with stop.deferred():
            pass
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, -2), (signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGHUP, 75)],
)
def test_only_sigint_is_to_be_died_of(number: signal.Signals, code: int) -> None:
    assert exit_code_of(number) == code


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_process_at_once(second: signal.Signals) -> None:
    program = (
        "import os, signal\n"
        "from nanobatch.job.stop_signal import StopSignal\n"
        "stop = StopSignal()\n"
        "with stop.installed(), stop.deferred():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here', flush=True)\n"
        f"    os.kill(os.getpid(), {int(second)})\n"
        "    print('too late', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + second, "still here\n", "")
