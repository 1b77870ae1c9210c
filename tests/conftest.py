"""Settings of all tests."""

import os
import signal
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run slow tests first, so that no process is left with one; trace no lines in vain.

    Coverage is that of the fast tests of the packages it is measured of: tracing doubles the time
    of kernels in Triton's interpreter, and slow tests measure speeds.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.pluginmanager.hasplugin("pytest_cov"):
        for item in items:
            folder = item.path.relative_to(TESTS).parts[0]
            if folder not in COVERED_FOLDERS or item.get_closest_marker("slow") is not None:
                item.add_marker("no_cover")
