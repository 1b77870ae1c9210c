"""A process ends after a stop signal whatever its main thread does."""

import signal
import threading
import time

import pytest

from nanobatch.job.process_end import EXIT_STOPPED, STOP_SIGNALS
from nanobatch.job.watchdog import GRACE_S, LAST_ACTIONS_S, Watchdog
from tests.job.python_program import PythonProgram, is_running

IN_C = """
stop = StopSignal(grace_s=0.3)
with stop.installed(), stop.deferred():
    ready()
    hang_in_c()
"""


def line(reason: str) -> str:
    return f"stopped by {reason}: run the same line again to continue\n"


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_process_in_a_c_call_ends_when_its_time_is_over(number: signal.Signals) -> None:
    ended = PythonProgram(IN_C).ended(number)
    code = -signal.SIGINT if number is signal.SIGINT else EXIT_STOPPED
    assert (ended.code, ended.err) == (code, line(number.name))
    assert 0.2 < ended.seconds < 3


def test_it_ends_within_ten_seconds_with_the_time_that_runs_have() -> None:
    ended = PythonProgram(IN_C.replace("grace_s=0.3", "")).ended(signal.SIGTERM)
    assert (ended.code, ended.err) == (EXIT_STOPPED, line("SIGTERM"))
    assert GRACE_S - 1 < ended.seconds < 10
    assert GRACE_S + LAST_ACTIONS_S < 9.5


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_process_in_a_c_call_at_once(second: signal.Signals) -> None:
    program = PythonProgram(IN_C.replace("grace_s=0.3", "grace_s=60"))
    ended = program.ended(signal.SIGTERM, second)
    code = -signal.SIGINT if second is signal.SIGINT else EXIT_STOPPED
    assert (ended.code, ended.err) == (code, line(second.name))
    assert ended.seconds < 1


def test_a_loop_that_never_looks_at_the_flag_is_ended() -> None:
    ended = PythonProgram(IN_C.replace("hang_in_c()", "while True: pass")).ended(signal.SIGTERM)
    assert (ended.code, ended.err) == (EXIT_STOPPED, line("SIGTERM"))
    assert ended.seconds < 3


def test_a_process_that_ends_by_itself_in_time_is_left_alone() -> None:
    program = PythonProgram("""
stop = StopSignal(grace_s=5)
with stop.installed(), stop.deferred():
    ready()
    while stop.received is None:
        time.sleep(0.01)
    print("stopping", flush=True)
sys.exit(9)
""")
    ended = program.ended(signal.SIGTERM)
    assert (ended.code, ended.out, ended.err) == (9, "stopping\n", "")


def test_ignored_signals_are_no_stop_signals() -> None:
    program = PythonProgram("""
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with StopSignal(grace_s=0.1).installed():
    ready()
    time.sleep(0.6)
""")
    ended = program.ended(signal.SIGHUP, signal.SIGHUP)
    assert (ended.code, ended.err) == (0, "")


def test_last_actions_are_tried_and_none_holds_up_the_end() -> None:
    program = PythonProgram("""
def fail():
    raise OSError("lost")
watchdog = Watchdog(TERM, grace_s=0.1, last_actions_s=0.3)
signal.signal(signal.SIGTERM, lambda *_: None)
with watchdog.installed(), watchdog.before_end(fail):
    with watchdog.before_end(lambda: print("too early", flush=True)):
        pass
    with watchdog.before_end(lambda: print("saved", flush=True)), watchdog.before_end(hang_in_c):
        ready()
        hang_in_c()
""")
    ended = program.ended(signal.SIGTERM)
    assert (ended.code, ended.out, ended.err) == (EXIT_STOPPED, "saved\n", line("SIGTERM"))
    assert ended.seconds < 2


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)])
def test_no_child_and_no_grandchild_outlives_the_end(numbers: tuple[signal.Signals, ...]) -> None:
    program = PythonProgram("""
child = subprocess.Popen(["sh", "-c", "trap '' TERM INT; sleep 60 & echo $!; wait; sleep 60"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
stop = StopSignal(grace_s=0.5)
with stop.installed(), stop.deferred():
    ready(child.pid, int(child.stdout.readline()))
    hang_in_c()
""")
    children = [int(pid) for pid in program.said]
    assert [is_running(pid) for pid in children] == [True, True]
    program.ended(*numbers)
    time.sleep(0.1)
    assert [is_running(pid) for pid in children] == [False, False]


def test_a_signal_to_a_forked_child_is_not_ours() -> None:
    program = PythonProgram("""
stop = StopSignal(grace_s=0.2)
with stop.installed(), stop.deferred():
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(7 if stop.received is signal.SIGTERM else 8)
    _, status = os.waitpid(child, 0)
    ready()
    time.sleep(0.6)
    print(os.waitstatus_to_exitcode(status), stop.received)
""")
    ended = program.ended()
    assert (ended.code, ended.out, ended.err) == (0, "7 None\n", "")


def test_when_the_inner_one_is_gone_the_outer_ones_time_runs_on() -> None:
    program = PythonProgram("""
Watchdog(TERM, grace_s=0.6).install()
stop = StopSignal(grace_s=60)
with stop.installed(), stop.deferred():
    ready()
    while stop.received is None:
        time.sleep(0.01)
hang_in_c()
""")
    ended = program.ended(signal.SIGTERM)
    assert (ended.code, ended.err) == (EXIT_STOPPED, line("SIGTERM"))
    assert ended.seconds < 3


def test_a_standard_error_that_nobody_reads_holds_up_no_end() -> None:
    program = PythonProgram("""
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 1000)
except BlockingIOError:
    os.set_blocking(2, True)
stop = StopSignal(grace_s=0.1)
with stop.installed(), stop.deferred():
    ready()
    hang_in_c()
""")
    program.send(signal.SIGTERM)
    assert program.code(timeout_s=5) == EXIT_STOPPED
    assert program.ended().err.strip("x") == ""


def test_the_wakeup_descriptor_is_given_back() -> None:
    names = {int(number): number.name for number in STOP_SIGNALS}
    with Watchdog(names).installed():
        outer = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(outer)
        with Watchdog(names).installed():
            pass
        assert signal.set_wakeup_fd(outer) == outer
    assert signal.set_wakeup_fd(-1) == -1
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]


def test_outside_the_main_thread_nothing_is_watched() -> None:
    names: list[str] = []

    def install() -> None:
        with Watchdog({}).installed():
            names.extend(thread.name for thread in threading.enumerate())

    thread = threading.Thread(target=install, name="another")
    thread.start()
    thread.join()
    assert ("another" in names, "watchdog" in names) == (True, False)
