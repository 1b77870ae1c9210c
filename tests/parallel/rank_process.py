"""What each process of the two-rank test does. Imports no transformers: it starts faster so."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from nanobatch.parallel.group import TensorParallelGroup
from tests.models.steps import PagedSequences, load, random_prompts

VOCAB_SIZE = 320


def all_logits(folders: Sequence[Path], group: TensorParallelGroup) -> list[torch.Tensor]:
    """Return the float64 logits of two prompts under each checkpoint, in chunks of ten."""
    results = []
    for folder in folders:
        model = load(folder, dtype=torch.float64, group=group)
        prompts = random_prompts((37, 5), vocab_size=VOCAB_SIZE)
        results += PagedSequences(model, prompts).run(10)
    return results


def run_rank(rank: int, folders: Sequence[Path], shared_folder: Path) -> None:
    """Meet the other rank, try both collectives, write this rank's logits."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{shared_folder / 'meeting_point'}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    group = TensorParallelGroup(rank=rank, size=2, process_group=dist.group.WORLD)
    assert group.all_gather(torch.full((2, 1), float(rank))).tolist() == [[0.0, 1.0]] * 2
    assert group.all_reduce(torch.tensor([1.0 + rank])).tolist() == [3.0]
    torch.save(all_logits(folders, group), shared_folder / f"logits_of_rank_{rank}.pt")
    dist.destroy_process_group()
