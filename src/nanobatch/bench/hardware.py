"""What a device can do: bytes and arithmetic per second, at most and sustained.

Knows a few GPUs by name; every other device is measured by `probe`. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BANDWIDTH_SHARE = 0.88
"""Of the data sheet's bandwidth, what copies and decode attention reach (H200: 4.2 of 4.8 TB/s)."""
MATMUL_SHARE = 0.92
"""Of the fastest matrix product measured, what a whole layer's products reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device.

    Attributes:
        name: Product name.
        kind: `cuda` or `cpu`.
        memory_bytes: Main memory of the device.
        peak_bytes_per_s: Bandwidth by the data sheet; the measured one where there is no sheet.
        peak_flop_per_s: Dense arithmetic likewise, in the data type of the run.
        bytes_per_s: Bandwidth that a good kernel sustains.
        flop_per_s: Arithmetic that a good matrix product sustains.
        origin: `known` by name, or `measured` when the benchmark began.
    """

    name: str
    kind: Literal["cuda", "cpu"]
    memory_bytes: int
    peak_bytes_per_s: float
    peak_flop_per_s: float
    bytes_per_s: float
    flop_per_s: float
    origin: Literal["known", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSheet:
    """What is known of a GPU: its data sheet, and the best bf16 product that was measured on it."""

    memory_bytes: float
    bytes_per_s: float
    dense_bf16_flop_per_s: float
    measured_flop_per_s: float


DATA_SHEETS: Mapping[str, DataSheet] = {
    "NVIDIA H200": DataSheet(
        memory_bytes=141e9,
        bytes_per_s=4.8e12,
        dense_bf16_flop_per_s=989e12,
        measured_flop_per_s=790e12,
    ),
    # The same chip as the H200's, so its products are taken to be as fast.
    "NVIDIA H100 80GB HBM3": DataSheet(
        memory_bytes=80e9,
        bytes_per_s=3.35e12,
        dense_bf16_flop_per_s=989e12,
        measured_flop_per_s=790e12,
    ),
    "NVIDIA A100-SXM4-80GB": DataSheet(
        memory_bytes=80e9,
        bytes_per_s=2.04e12,
        dense_bf16_flop_per_s=312e12,
        measured_flop_per_s=280e12,
    ),
}
"""By the name that CUDA gives."""

HALF_DTYPES = ("bfloat16", "float16")


def known_hardware(name: str, dtype: str) -> Hardware | None:
    """Return what is known of a GPU for a data type, or None where it has to be measured."""
    sheet = DATA_SHEETS.get(name)
    if sheet is None or dtype not in HALF_DTYPES:
        return None
    return Hardware(
        name=name,
        kind="cuda",
        memory_bytes=int(sheet.memory_bytes),
        peak_bytes_per_s=sheet.bytes_per_s,
        peak_flop_per_s=sheet.dense_bf16_flop_per_s,
        bytes_per_s=sheet.bytes_per_s * BANDWIDTH_SHARE,
        flop_per_s=sheet.measured_flop_per_s * MATMUL_SHARE,
        origin="known",
    )
