"""The first signal asks for an orderly end, the second ends at once."""

import os
import signal
import threading
import time

import pytest

from nanobatch.errors import Stopped
from nanobatch.job.process_end import STOP_SIGNALS
from nanobatch.job.stop_signal import StopReason, StopSignal, exit_code_of
from tests.job.python_program import PythonProgram


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


@pytest.mark.parametrize(("second", "code"), [(signal.SIGINT, -2), (signal.SIGTERM, 75)])
def test_a_second_signal_ends_the_process_at_once(second: signal.Signals, code: int) -> None:
    program = PythonProgram("""
stop = StopSignal()
with stop.installed(), stop.deferred():
    ready()
    while True:
        time.sleep(0.01)
""")
    ended = program.ended(signal.SIGTERM, second)
    line = f"stopped by {second.name}: run the same line again to continue\n"
    assert (ended.code, ended.out, ended.err) == (code, "", line)
    assert ended.seconds < 1


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_is_a_reason_with_its_name(number: signal.Signals) -> None:
    stop = StopSignal()
    assert stop.reason is None
    stop.received = number
    assert stop.reason == StopReason(text=number.name, exit_code=exit_code_of(number))


@pytest.mark.parametrize(
    ("stop_after_s", "text"),
    [(27_000, "7h30m"), (90, "1m30s"), (0.25, "0.25s"), (86_400, "24h"), (3_601, "1h1s")],
)
def test_the_time_limit_is_a_reason_as_the_flag_says_it(stop_after_s: float, text: str) -> None:
    stop = StopSignal(stop_after_s=stop_after_s)
    stop.received = signal.SIGALRM
    assert stop.reason == StopReason(text=f"--stop-after {text}", exit_code=75)


def test_at_the_time_limit_a_deferred_run_finds_a_note() -> None:
    stop = StopSignal(stop_after_s=0.05)
    with stop.installed(), stop.deferred():
        assert stop.reason is None
        time.sleep(0.3)
        assert stop.reason == StopReason(text="--stop-after 0.05s", exit_code=75)


def test_at_the_time_limit_a_wait_with_nothing_to_save_ends() -> None:
    stop = StopSignal(stop_after_s=0.05)
    start_s = time.monotonic()
    with pytest.raises(Stopped) as raised, stop.installed():
        time.sleep(30)
    assert time.monotonic() - start_s < 5
    assert raised.value.message == "stopped by --stop-after 0.05s"


def test_at_the_time_limit_a_process_in_a_c_call_ends() -> None:
    program = PythonProgram("""
stop = StopSignal(stop_after_s=0.1, grace_s=0.2)
with stop.installed(), stop.deferred():
    ready()
    hang_in_c()
""")
    ended = program.ended()
    line = "stopped by --stop-after 0.1s: run the same line again to continue\n"
    assert (ended.code, ended.err) == (75, line)
    assert ended.seconds < 3


def test_the_time_limit_hurries_no_run_that_stops_already() -> None:
    program = PythonProgram("""
stop = StopSignal(stop_after_s=0.3)
with stop.installed(), stop.deferred():
    os.kill(os.getpid(), signal.SIGTERM)
    ready()
    time.sleep(0.6)
    print(stop.reason.text)
""")
    ended = program.ended()
    assert (ended.code, ended.out, ended.err) == (0, "SIGTERM\n", "")


def test_the_time_limit_ends_with_the_run() -> None:
    stop = StopSignal(stop_after_s=60)
    with stop.installed():
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_a_run_outside_the_main_thread_handles_no_signals() -> None:
    handlers: list[object] = []

    def install() -> None:
        with StopSignal(stop_after_s=60).installed():
            handlers.extend(signal.getsignal(number) for number in STOP_SIGNALS)

    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert handlers == before
