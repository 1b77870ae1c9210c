"""Sizes of small layers, and their operations uncompiled."""

from functools import partial

import torch

from nanobatch.kernels.compiled.kernels import CompiledKernels, Operations
from nanobatch.kernels.compiled.programs import LayerSizes, layer_programs


def layer_sizes(*, dtype: torch.dtype, has_head_norms: bool = False) -> LayerSizes:
    return LayerSizes(
        hidden_size=48,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        eps=1e-5,
        has_head_norms=has_head_norms,
        dtype=dtype,
    )


def plain_operations(sizes: LayerSizes) -> Operations:
    """Return what is compiled for a model, uncompiled."""
    programs = layer_programs(sizes)
    return Operations(
        **{
            name: partial(program.function, **program.constants)
            for name, program in programs.items()
        }
    )


def plain_kernels(sizes: LayerSizes) -> CompiledKernels:
    return CompiledKernels(sizes, plain_operations(sizes))
