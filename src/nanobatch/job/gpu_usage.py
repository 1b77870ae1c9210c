"""How busy the GPU is, through NVIDIA's management library where it is installed.

Knows nothing of torch: it must work in a process that never loads it.
"""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """Memory and load of the first visible GPU.

    Attributes:
        memory_used_bytes: Bytes in use by all processes.
        memory_total_bytes: Bytes it has.
        utilization: Share of the last sampling period in which a kernel ran, 0 to 1.
    """

    memory_used_bytes: int
    memory_total_bytes: int
    utilization: float


def read_gpu_usage() -> GpuUsage | None:
    """Return the usage of the first visible GPU, or None where there is none to ask."""
    library, handle = _first_gpu()
    if handle is None:
        return None
    try:
        memory = library.nvmlDeviceGetMemoryInfo(handle)
        busy_percent = library.nvmlDeviceGetUtilizationRates(handle).gpu
    except library.NVMLError:
        return None
    return GpuUsage(
        memory_used_bytes=memory.used,
        memory_total_bytes=memory.total,
        utilization=busy_percent / 100,
    )


def gpu_name() -> str | None:
    """Return the product name of the first visible GPU, or None where there is none to ask."""
    library, handle = _first_gpu()
    if handle is None:
        return None
    name: str = library.nvmlDeviceGetName(handle)
    return name


@cache
def _first_gpu() -> tuple[Any, Any]:
    try:
        import pynvml
    except ImportError:
        return None, None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    try:
        pynvml.nvmlInit()
        if visible.startswith(("GPU-", "MIG-")):
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(visible)
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(int(visible)) if visible else None
    except (pynvml.NVMLError, ValueError):
        return None, None
