"""Which code computes the attention of prompts: what `--attention-backend` names, and `auto`.

Only prompts have a choice. Decode steps run our own kernel on a GPU and torch on a CPU.
"""

import importlib.util
from enum import StrEnum

import torch

from nanobatch.errors import ConfigError
from nanobatch.kernels.gpu.flash_attention import (
    MAX_HEAD_DIM,
    fa2_obstacle,
    fa3_obstacle,
    flash_shape_obstacle,
)

AUTO = "auto"


class AttentionBackend(StrEnum):
    """What computes the attention of prompt chunks; the fastest first."""

    FA3 = "fa3"
    FA2 = "fa2"
    TRITON = "triton"
    TORCH = "torch"

    @property
    def description(self) -> str:
        """One line for the log."""
        return DESCRIPTIONS[self]


DESCRIPTIONS = {
    AttentionBackend.FA3: "FlashAttention-3, over new keys and over the paged KV cache",
    AttentionBackend.FA2: "FlashAttention-2 over new keys, Triton over the paged KV cache",
    AttentionBackend.TRITON: "Triton, over new keys and over the paged KV cache",
    AttentionBackend.TORCH: "torch (the reference; slow on a GPU)",
}


def resolve_attention_backend(
    name: str, device: torch.device, *, dtype: torch.dtype, head_dim: int
) -> AttentionBackend:
    """Return the backend of that name; `auto` takes the fastest that works here.

    Args:
        name: `auto` or the value of an `AttentionBackend`.
        device: Where the model runs.
        dtype: Of queries, keys and values.
        head_dim: Dimensions per head.

    Raises:
        ConfigError: There is no such backend, or it does not work here.
    """
    names = (AUTO, *(backend.value for backend in AttentionBackend))
    if name not in names:
        raise ConfigError(
            f"attention backend {name!r} is not known", hint=f"choose one of {', '.join(names)}"
        )
    if name == AUTO:
        return next(
            backend
            for backend in AttentionBackend
            if _obstacle(backend, device, dtype=dtype, head_dim=head_dim) is None
        )
    backend = AttentionBackend(name)
    obstacle = _obstacle(backend, device, dtype=dtype, head_dim=head_dim)
    if obstacle is not None:
        raise ConfigError(
            f"attention backend {name} cannot be used: {obstacle}",
            hint="--attention-backend auto takes the fastest that works",
        )
    return backend


def _obstacle(
    backend: AttentionBackend, device: torch.device, *, dtype: torch.dtype, head_dim: int
) -> str | None:
    """Say why a backend does not work here, or return None; torch always works."""
    if backend is AttentionBackend.TORCH:
        return None
    if device.type != "cuda":
        return f"it needs a CUDA device, not {device.type}"
    if backend is AttentionBackend.TRITON:
        return _triton_obstacle(device, dtype=dtype, head_dim=head_dim)
    shape_obstacle = flash_shape_obstacle(dtype=dtype, head_dim=head_dim)
    if shape_obstacle is not None:
        return shape_obstacle
    return fa3_obstacle(device) if backend is AttentionBackend.FA3 else fa2_obstacle(device)


def _triton_obstacle(device: torch.device, *, dtype: torch.dtype, head_dim: int) -> str | None:
    if dtype == torch.float64:
        return "it computes bfloat16, float16 and float32 only, not float64"
    if head_dim > MAX_HEAD_DIM:
        return f"it computes head dimensions up to {MAX_HEAD_DIM}, not {head_dim}"
    if torch.cuda.get_device_capability(device)[0] < 8:
        return "it needs a GPU of compute capability 8.0 (Ampere) or higher"
    if importlib.util.find_spec("triton") is None:
        return "the Python module triton is not installed"
    return None
