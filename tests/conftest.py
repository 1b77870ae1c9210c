"""Settings of all tests."""

import os
import signal

import torch
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("nanobatch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nanobatch")

# Under nohup SIGHUP is ignored, in the programs that tests start too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton
