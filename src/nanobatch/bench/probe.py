"""Finds out what this machine's device can do, measuring those that are not known by name."""

import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from nanobatch.bench.events import Machine
from nanobatch.bench.hardware import Hardware, known_hardware
from nanobatch.config import Device, Dtype

PACKAGES = ("torch", "triton", "transformers", "vllm", "flash-attn", "tokenspeed-fa3")
COPY_BYTES = {"cuda": 1 << 30, "cpu": 128 << 20}
MATMUL_SIZE = {"cuda": 8192, "cpu": 1536}
NUM_TRIALS = 8


def inspect_machine(device: Device, dtype: Dtype) -> Machine:
    """Return the device that a run takes, the data type that it has there, and versions.

    Raises:
        ConfigError: The device is not there.
    """
    from nanobatch.engine.model_runner import resolve_device
    from nanobatch.models.loader import resolve_dtype

    torch_device = resolve_device(device)
    torch_dtype = resolve_dtype(dtype, torch_device)
    dtype_name = str(torch_dtype).removeprefix("torch.")
    name = _device_name(torch_device)
    hardware = known_hardware(name, dtype_name) or _measure(name, torch_device, torch_dtype)
    return Machine(hardware=hardware, dtype=dtype_name, versions=_versions())


def _device_name(device: Any) -> str:
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{_processor_name()}, {len(os.sched_getaffinity(0))} cores"


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _measure(name: str, device: Any, dtype: Any) -> Hardware:
    """Measure a copy and a matrix product; what they reach is taken for what is sustained."""
    import torch

    copied = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(copied)
    copy_s = _seconds(lambda: target.copy_(copied), device)
    size = MATMUL_SIZE[device.type]
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    matmul_s = _seconds(lambda: matrix @ matrix, device)
    bytes_per_s = 2 * copied.nbytes / copy_s
    flop_per_s = 2 * size**3 / matmul_s
    return Hardware(
        name=name,
        kind=device.type,
        memory_bytes=_memory_bytes(device),
        peak_bytes_per_s=bytes_per_s,
        peak_flop_per_s=flop_per_s,
        bytes_per_s=bytes_per_s,
        flop_per_s=flop_per_s,
        origin="measured",
    )


def _seconds(run: Callable[[], object], device: Any) -> float:
    import torch

    durations_s = []
    for _ in range(NUM_TRIALS):
        begin_s = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        durations_s.append(time.perf_counter() - begin_s)
    return min(durations_s)


def _memory_bytes(device: Any) -> int:
    import torch

    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
