"""What is compiled for a model: each function with the sizes of one layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from nanobatch.config import ModelConfig
from nanobatch.kernels.compiled.compiler import Program
from nanobatch.kernels.compiled.functions import (
    KEY_LANES,
    add_rms_norm,
    attend_rows,
    lay_out_keys,
    normalise_rotate_and_store,
    rotate_and_store,
)

COMPILED_GROUPS: Final = range(2, 9)
"""Query heads that share a KV head where `attend_rows` is faster than torch's flash attention: 1.2
to 2 times with 3 to 8 of them, 1.05 to 1.5 with 2 (64 rows of 96 keys to one of 4,096, Xeon with
AMX), 0.6 to 0.9 with one, 0.5 with 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """What of a model is compiled in.

    Attributes:
        hidden_size: Features of the residual stream.
        num_heads: Query heads.
        num_kv_heads: KV heads.
        head_dim: Dimensions of a head.
        eps: Of every norm.
        has_head_norms: Whether queries and keys are normalised.
        dtype: Of weights, activations and the KV pool.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    has_head_norms: bool
    dtype: torch.dtype

    @property
    def attends_compiled(self) -> bool:
        """Whether attention of decoding rows is compiled."""
        return self.num_heads // self.num_kv_heads in COMPILED_GROUPS

    @classmethod
    def of(cls, model_config: ModelConfig, dtype: torch.dtype) -> "LayerSizes":
        """Return the sizes of a whole model in a data type."""
        return cls(
            hidden_size=model_config.hidden_size,
            num_heads=model_config.num_heads,
            num_kv_heads=model_config.num_kv_heads,
            head_dim=model_config.head_dim,
            eps=model_config.rms_norm_eps,
            has_head_norms=model_config.has_qk_norm,
            dtype=dtype,
        )


def layer_programs(sizes: LayerSizes) -> Mapping[str, Program]:
    """Return the program of each of `Operations` by its name."""
    of = _Examples(sizes)
    tokens, slots, rows = {0: "num_tokens"}, {0: "num_slots"}, {0: "num_rows"}
    kept, seen = {**rows, 1: "capacity"}, {**rows, 1: "num_blocks"}
    eps = {"eps": sizes.eps}
    rotation = (of.qkv(), of.angles(), of.angles(), of.places(), of.pool(), of.pool())
    varying = (*(tokens,) * 4, slots, slots)
    if sizes.has_head_norms:
        rotate = Program(
            function=normalise_rotate_and_store,
            examples=(*rotation, of.vector(sizes.head_dim), of.vector(sizes.head_dim)),
            varying=(*varying, {}, {}),
            constants=eps,
        )
    else:
        rotate = Program(function=rotate_and_store, examples=rotation, varying=varying)
    programs = {
        "add_rms_norm": Program(
            function=add_rms_norm,
            examples=(of.stream(), of.stream(), of.vector(sizes.hidden_size)),
            varying=(tokens, tokens, {}),
            constants=eps,
        ),
        "rotate_and_store": rotate,
    }
    if not sizes.attends_compiled:
        return programs
    return {
        **programs,
        "lay_out_keys": Program(
            function=lay_out_keys,
            examples=(of.found_keys(),),
            varying=(kept,),
        ),
        "attend_rows": Program(
            function=attend_rows,
            examples=(of.query(), of.key(), of.key(), *of.kept(), *of.step(), *of.shared()),
            varying=(*(rows,) * 3, kept, kept, {1: "num_rows"}, seen, rows, rows),
            constants={"scale": sizes.head_dim**-0.5},
        ),
    }


class _Examples:
    """Inputs of the functions, each time new ones, since a function may write to them."""

    num_rows, num_slots, num_blocks, capacity = 5, 7, 2, 3  # of what varies

    def __init__(self, sizes: LayerSizes) -> None:
        self._sizes = sizes
        self._kv_shape = (sizes.num_kv_heads, sizes.head_dim)
        self._group = sizes.num_heads // sizes.num_kv_heads

    def vector(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self._sizes.dtype)

    def stream(self) -> torch.Tensor:
        return self.vector(self.num_rows, self._sizes.hidden_size)

    def qkv(self) -> torch.Tensor:
        num_heads = self._sizes.num_heads + 2 * self._sizes.num_kv_heads
        return self.vector(self.num_rows, num_heads, self._sizes.head_dim)

    def query(self) -> torch.Tensor:
        return self.vector(self.num_rows, self._sizes.num_heads, self._sizes.head_dim)

    def key(self) -> torch.Tensor:
        return self.vector(self.num_rows, *self._kv_shape)

    def pool(self) -> torch.Tensor:
        return self.vector(self.num_slots, *self._kv_shape)

    def angles(self) -> torch.Tensor:
        return torch.zeros(self.num_rows, self._sizes.head_dim // 2)

    def places(self) -> torch.Tensor:
        return torch.arange(self.num_rows)

    def found_keys(self) -> torch.Tensor:
        return self.vector(self.num_rows, self.capacity, KEY_LANES, *self._kv_shape)

    def kept(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys = self.vector(self.num_rows, self.capacity, *self._kv_shape, KEY_LANES)
        return keys, self.found_keys()

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.zeros(2, self.num_rows, dtype=torch.int64)
        return places, torch.zeros(self.num_rows, self.num_blocks, KEY_LANES)

    def shared(self) -> tuple[torch.Tensor, torch.Tensor]:
        shape = self.num_rows, self._kv_shape[0], self._group
        return torch.zeros(*shape, self._kv_shape[1]), torch.zeros(shape)
