"""Which kernel computes a matrix product: one of cuBLAS's two libraries, or the skinny kernel.

A static table, measured by hand on one device, so that a run never times anything and a row's
result depends on nothing but the shapes. Knows numbers only: no torch, no weights, no kernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import log2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How the skinny kernel cuts a product [rows, depth] x [features, depth]ᵀ into programs.

    Attributes:
        block_rows: Rows of the activations per program, a power of two of at least 16.
        block_features: Output features per program, a power of two of at least 64 (wgmma's M).
        block_depth: Summed elements per step of the pipeline, a power of two.
        num_splits: Programs that share the depth of one output tile.
        num_warps: Warps per program.
        num_stages: Steps of the pipeline in flight.
    """

    block_rows: int
    block_features: int
    block_depth: int
    num_splits: int
    num_warps: int
    num_stages: int

    def num_tiles(self, num_rows: int, num_features: int) -> int:
        """Return the number of output tiles, each computed by `num_splits` programs."""
        return -(-num_rows // self.block_rows) * -(-num_features // self.block_features)

    def num_partial_elements(self, num_rows: int, num_features: int) -> int:
        """Return how many fp32 partial sums the programs exchange; 0 without splits."""
        if self.num_splits == 1:
            return 0
        tile_size = self.block_rows * self.block_features
        return self.num_tiles(num_rows, num_features) * self.num_splits * tile_size


class Library(Enum):
    """Whose own choice of kernel is taken; they choose differently."""

    CUBLAS = "cublas"
    CUBLAS_LT = "cublaslt"


MatmulKernel = Tiling | Library
"""What computes a product: the skinny kernel with these tiles, or a library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRule:
    """Use `kernel` for products of up to `max_rows` rows."""

    max_rows: int
    kernel: MatmulKernel


MatmulRules = tuple[MatmulRule, ...]
"""Rules of one shape, by ascending `max_rows`; cuBLAS beyond the last."""


def _tiled(max_rows: int, *sizes: int) -> MatmulRule:
    block_rows, block_features, block_depth, num_splits, num_warps, num_stages = sizes
    tiling = Tiling(
        block_rows=block_rows,
        block_features=block_features,
        block_depth=block_depth,
        num_splits=num_splits,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return MatmulRule(max_rows=max_rows, kernel=tiling)


def _cublas(max_rows: int) -> MatmulRule:
    return MatmulRule(max_rows=max_rows, kernel=Library.CUBLAS)


def _cublaslt(max_rows: int) -> MatmulRule:
    return MatmulRule(max_rows=max_rows, kernel=Library.CUBLAS_LT)


MEASURED_RULES: Mapping[tuple[int, int], MatmulRules] = {
    (4096, 1024): (  # Qwen3-0.6B: query, key, value
        _tiled(16, 16, 64, 128, 1, 4, 6),  # 4.8 µs, cuBLAS 4.9
        _tiled(32, 32, 64, 128, 1, 4, 6),  # 5.1 µs, cuBLAS 5.3
    ),
    (1024, 2048): (  # Qwen3-0.6B: attention output
        _tiled(16, 16, 64, 64, 8, 4, 6),  # 4.8 µs, cuBLAS 5.8
        _tiled(32, 32, 64, 64, 4, 4, 6),  # 5.4 µs, cuBLAS 5.9
    ),
    (6144, 1024): (  # Qwen3-0.6B: gate, up
        _tiled(16, 16, 64, 128, 1, 4, 6),  # 5.4 µs, cuBLAS 6.0
        _tiled(32, 32, 64, 128, 1, 4, 6),  # 5.6 µs, cuBLAS 6.1
    ),
    (1024, 3072): (  # Qwen3-0.6B: down
        _tiled(16, 16, 64, 128, 4, 4, 6),  # 5.1 µs, cuBLAS 6.8
        _tiled(32, 32, 64, 128, 4, 4, 4),  # 5.7 µs, cuBLAS 6.9
        _tiled(64, 64, 64, 128, 4, 4, 6),  # 6.9 µs, cuBLAS 7.1
        _cublas(512),
        _cublaslt(768),  # 9.6 to 11.9 µs, cuBLAS 11.1 to 14.5
    ),
    (6144, 4096): (  # Qwen3-8B: query, key, value
        _tiled(16, 16, 64, 128, 1, 4, 6),  # 15.3 µs, cuBLAS 16.2
    ),
    (4096, 4096): (  # Qwen3-8B: attention output
        _tiled(16, 16, 64, 128, 1, 4, 6),  # 11.3 µs, cuBLAS 12.8
        _tiled(32, 32, 64, 128, 1, 4, 6),  # 11.7 µs, cuBLAS 12.9
        _cublaslt(48),  # 12.1 µs, cuBLAS 14.0
        _cublas(80),
        _cublaslt(112),  # 13.2 µs, cuBLAS 15.9
        _cublas(128),
        _cublaslt(208),  # 15.1 to 17.9 µs, cuBLAS 16.0 to 19.5
        _cublas(352),
        _cublaslt(384),  # 20.6 µs, cuBLAS 24.4
    ),
    (24576, 4096): (),  # Qwen3-8B: gate, up: 49.9 µs at 16 rows, cuBLAS 48.9
    (4096, 12288): (  # Qwen3-8B: down
        _tiled(16, 16, 64, 256, 2, 4, 4),  # 27.3 µs, cuBLAS 28.6
        _cublaslt(112),  # 29.6 to 33.1 µs, cuBLAS 31.5 to 35.8
        _cublas(176),
        _cublaslt(192),  # 45.2 µs, cuBLAS 57.4
        _cublas(352),
        _cublaslt(384),  # 55.2 µs, cuBLAS 64.0
    ),
    (151936, 1024): (  # Qwen3-0.6B: head, fp32 out
        _tiled(16, 16, 64, 128, 1, 4, 4),  # 79.6 µs, cuBLAS 89.2
    ),
    (151936, 4096): (  # Qwen3-8B: head, fp32 out
        _tiled(16, 16, 64, 128, 1, 4, 4),  # 286.2 µs, cuBLAS 312.4
        _tiled(32, 32, 128, 128, 1, 4, 4),  # 293.8 µs, cuBLAS 301.7
    ),
}
"""Rules by (out_features, in_features), where another kernel beat cuBLAS on an H200 by 2 % or
more (torch 2.11, CUDA 13.0, bfloat16, weights from memory): by µs, or by starting early."""


@cache
def rules_for(out_features: int, in_features: int) -> MatmulRules:
    """Return the rules of the measured shape that is nearest to a weight [out, in]."""
    return nearest_rules(MEASURED_RULES, out_features, in_features)


def nearest_rules(
    measured: Mapping[tuple[int, int], MatmulRules], out_features: int, in_features: int
) -> MatmulRules:
    """Return the rules of the shape in `measured` that is nearest to a weight [out, in].

    Near is measured in doublings of either side: what decides is how many tiles there are for
    the chip's multiprocessors and how much of the weight each of them streams.
    """

    def distance(shape: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        doublings = abs(log2(out_features / shape[0])) + abs(log2(in_features / shape[1]))
        return doublings, shape

    return measured[min(measured, key=distance)] if measured else ()


def kernel_for(rules: MatmulRules, num_rows: int) -> MatmulKernel:
    """Return what computes a product of so many rows."""
    for rule in rules:
        if num_rows <= rule.max_rows:
            return rule.kernel
    return Library.CUBLAS


def num_arrival_counters(rules: MatmulRules, out_features: int) -> int:
    """Return how many output tiles can be shared among programs at once under the rules."""
    num_tiles = (
        rule.kernel.num_tiles(rule.max_rows, out_features)
        for rule in rules
        if isinstance(rule.kernel, Tiling) and rule.kernel.num_splits > 1
    )
    return max(num_tiles, default=0)
