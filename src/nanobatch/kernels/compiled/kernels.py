"""The operations of a decoder layer on a CPU in bfloat16, compiled.

What lies between a layer's products is small: as torch operations, most of its time goes into
starting them. Here each is one function, compiled once for the processor and the model's sizes.
Products stay those of `TorchKernels`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from nanobatch.kernels.compiled.compiler import (
    CompiledFunction,
    Program,
    can_compile,
    compile_programs,
    compiled,
    compiler_name,
    is_compiled,
    library_folder,
)
from nanobatch.kernels.compiled.programs import LayerSizes, layer_programs
from nanobatch.kernels.kernel_set import HeadNorms
from nanobatch.kernels.torch_kernels import TorchKernels

log = logging.getLogger(__name__)

Operation = Callable[..., list[torch.Tensor] | tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What `functions` says, compiled or not, with a model's constants and norms of heads.

    The last two are None where torch's attention is faster.
    """

    add_rms_norm: Operation
    rotate_and_store: Operation
    lay_out_keys: Operation | None = None
    attend_rows: Operation | None = None


class CompiledKernels(TorchKernels):
    """A `KernelSet` for a CPU.

    Args:
        sizes: Of the model that it computes.
        operations: Compiled for these sizes.

    Attributes:
        operations: As given.
    """

    def __init__(self, sizes: LayerSizes, operations: Operations) -> None:
        super().__init__()
        self._sizes = sizes
        self.operations = operations
        self._last_slots: tuple[torch.Tensor, bool] | None = None  # of a step: all stored?

    def add_rms_norm(
        self, hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised sum of a block's output and the residual stream, and the sum."""
        assert eps == self._sizes.eps, "compiled in"
        if not len(hidden):  # a chunk that ends no prompt needs no last layer
            return super().add_rms_norm(hidden, residual, weight, eps=eps)
        normalised, total = self.operations.add_rms_norm(hidden, residual, weight)
        return normalised, total

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        *,
        norms: HeadNorms | None,
        num_heads: int,
        slot_mapping: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Normalise, rotate and store a step's heads (see `KernelSet.rotate_and_store`)."""
        if not self._are_all_stored(slot_mapping):
            return super().rotate_and_store(
                qkv,
                rotation,
                norms=norms,
                num_heads=num_heads,
                slot_mapping=slot_mapping,
                key_cache=key_cache,
                value_cache=value_cache,
            )
        assert norms is None or norms.eps == self._sizes.eps, "compiled in"
        assert rotation[0].is_contiguous() and rotation[1].is_contiguous()
        weights = () if norms is None else (norms.query_weight, norms.key_weight)
        query, key, value = self.operations.rotate_and_store(
            qkv.view(len(qkv), -1, self._sizes.head_dim),
            *rotation,
            slot_mapping,
            key_cache.view(-1, *key_cache.shape[2:]),
            value_cache.view(-1, *value_cache.shape[2:]),
            *weights,
        )
        return query, key, value

    def _are_all_stored(self, slot_mapping: torch.Tensor) -> bool:
        """Whether every token of a step has a slot, found out by the first layer that asks."""
        last = self._last_slots
        if last is None or last[0] is not slot_mapping:
            last = self._last_slots = slot_mapping, int(slot_mapping.min()) >= 0
        return last[1]


def cpu_kernels(
    sizes: LayerSizes, *, folder: Path | None = None, on_wait: Callable[[], None] | None = None
) -> TorchKernels:
    """Return the fastest kernels for a CPU: compiled ones in bfloat16 where there is a compiler.

    The first call for a processor and a model's sizes takes about a minute.

    Args:
        sizes: Of the model.
        folder: Where libraries are kept; None takes `library_folder`.
        on_wait: Called while compiling; what it raises ends that, and is raised.
    """
    if sizes.dtype != torch.bfloat16:
        return TorchKernels()
    try:
        folder = library_folder() if folder is None else folder
        programs = layer_programs(sizes)
        if not all(is_compiled(program, folder) for program in programs.values()):
            if not can_compile():
                log.info(
                    "no C++ compiler (%s), or torch before 2.13: small operations take longer",
                    compiler_name(),
                )
                return TorchKernels()
            log.info("compiling for this processor: the first time takes about a minute")
            compile_programs(programs.values(), folder, on_wait=on_wait)
        return CompiledKernels(sizes, _opened(programs, folder))
    except (OSError, RuntimeError) as error:  # nothing that a row depends on
        log.warning("compiling failed, so small operations take longer: %s", _first_line(error))
        return TorchKernels()


def _opened(programs: Mapping[str, Program], folder: Path) -> Operations:
    functions: dict[str, CompiledFunction] = {
        name: compiled(program, folder) for name, program in programs.items()
    }
    return Operations(**functions)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
