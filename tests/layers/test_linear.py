from typing import cast

import torch
from torch.distributed import ProcessGroup

from nanobatch.kernels.torch_kernels import TorchKernels
from nanobatch.layers.attention import kv_head_shard
from nanobatch.layers.embedding import VocabMatrix
from nanobatch.layers.linear import FeatureShard, MergedColumnParallelLinear, RowParallelLinear
from nanobatch.parallel.group import SINGLE_RANK, TensorParallelGroup

CPU = torch.device("cpu")
KERNELS = TorchKernels()
NEVER_USED = cast(ProcessGroup, object())
"""These layers are built and filled, never run across ranks."""


def group_of(rank: int, size: int) -> TensorParallelGroup:
    return TensorParallelGroup(rank=rank, size=size, process_group=NEVER_USED)


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def test_merged_matrices_give_each_matrix_its_own_output_features() -> None:
    shards = {
        "gate": FeatureShard.even(3, SINGLE_RANK),
        "up": FeatureShard.even(2, SINGLE_RANK),
    }
    layer = MergedColumnParallelLinear(
        4, shards, has_bias=True, dtype=torch.float32, device=CPU, kernels=KERNELS
    )
    weights = {
        "gate.weight": numbered(3, 4),
        "gate.bias": numbered(3),
        "up.weight": -numbered(2, 4),
        "up.bias": 7 + numbered(2),
    }
    slots = layer.weight_slots()
    assert {name: slot.shape for name, slot in slots.items()} == {
        name: tuple(weight.shape) for name, weight in weights.items()
    }
    for name, weight in weights.items():
        slots[name].store(weight)
    hidden = numbered(2, 4)
    expected = torch.cat(
        (
            hidden @ weights["gate.weight"].T + weights["gate.bias"],
            hidden @ weights["up.weight"].T + weights["up.bias"],
        ),
        dim=1,
    )
    assert torch.equal(layer.forward(hidden), expected)


def test_column_parallel_ranks_hold_consecutive_output_features() -> None:
    whole = numbered(6, 2)
    for rank in range(3):
        shards = {"up": FeatureShard.even(6, group_of(rank, 3))}
        layer = MergedColumnParallelLinear(
            2, shards, has_bias=False, dtype=torch.float32, device=CPU, kernels=KERNELS
        )
        layer.weight_slots()["up.weight"].store(whole)
        assert torch.equal(layer.weight, whole[2 * rank : 2 * rank + 2])


def test_row_parallel_ranks_hold_consecutive_input_features() -> None:
    whole = numbered(2, 6)
    for rank in range(2):
        layer = RowParallelLinear(
            6,
            2,
            has_bias=True,
            dtype=torch.float32,
            device=CPU,
            group=group_of(rank, 2),
            kernels=KERNELS,
        )
        slots = layer.weight_slots()
        assert {name: slot.shape for name, slot in slots.items()} == {
            "weight": (2, 6),
            "bias": (2,),
        }
        slots["weight"].store(whole)
        assert torch.equal(layer.weight, whole[:, 3 * rank : 3 * rank + 3])


def test_kv_heads_are_split_or_shared_among_ranks() -> None:
    def held(num_kv_heads: int, size: int) -> list[list[int]]:
        shards = [kv_head_shard(num_kv_heads, group_of(rank, size)) for rank in range(size)]
        return [list(range(shard.start, shard.start + shard.size)) for shard in shards]

    assert held(4, 2) == [[0, 1], [2, 3]]
    assert held(2, 2) == [[0], [1]]
    assert held(2, 8) == [[0], [0], [0], [0], [1], [1], [1], [1]]
    assert held(1, 2) == [[0], [0]]


def test_the_vocabulary_is_padded_with_zeros_on_the_last_rank() -> None:
    whole = numbered(5, 2) + 1
    for rank, expected in ((0, whole[:3]), (1, torch.cat((whole[3:], torch.zeros(1, 2))))):
        matrix = VocabMatrix(5, 2, dtype=torch.float32, device=CPU, group=group_of(rank, 2))
        matrix.weight_slots()["weight"].store(whole)
        assert torch.equal(matrix.weight, expected)
    many_ranks = VocabMatrix(5, 2, dtype=torch.float32, device=CPU, group=group_of(3, 4))
    many_ranks.store(whole)
    assert torch.equal(many_ranks.weight, torch.zeros(2, 2))
