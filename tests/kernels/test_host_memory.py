import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys
from nanobatch.kernels.host_memory import keep_freed_memory
import torch

def faults_of(num_rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(num_rounds):
        torch.empty(4 << 20, dtype=torch.uint8).fill_(1)
        torch.empty(9 << 20, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if not hasattr(ctypes.CDLL(None), "mallopt"):
    sys.exit(77)
keep_freed_memory()
faults_of(20)
print(faults_of(20))
"""


def test_memory_that_was_freed_is_used_again_without_page_faults() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("malloc is not glibc's")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100  # mapped afresh it would be 20 rounds of 3,328 pages
