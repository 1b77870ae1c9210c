"""Settings of all tests."""

import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("nanobatch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nanobatch")

# Under nohup SIGHUP is ignored, in the programs that tests start too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

TESTS = Path(__file__).parent
COVERED_FOLDERS = ("io", "engine", "job")
"""Where the tests of the packages stand whose coverage is measured."""

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that no process is left with one."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Trace no lines in vain.

    Coverage is that of the fast tests of the packages it is measured of: tracing doubles the time
    of kernels in Triton's interpreter, and slow tests measure speeds. pytest-cov's `no_cover` does
    not stop it in the processes of pytest-xdist, where it is started twice.
    """
    folder = item.path.relative_to(TESTS).parts[0]
    trace = sys.gettrace()
    if (folder in COVERED_FOLDERS and item.get_closest_marker("slow") is None) or trace is None:
        return (yield)
    thread_trace = threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(trace)
        threading.settrace(thread_trace)
