import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from nanobatch.parallel.group import SINGLE_RANK, TensorParallelGroup
from tests.checkpoints import write_checkpoint
from tests.parallel.rank_process import all_logits, run_rank

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "llama_bias": {"num_key_value_heads": 1, "vocab_size": 321},  # one KV head, an odd vocabulary
    "qwen2_window": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 4, "tie_word_embeddings": True},
}


def test_two_ranks_give_the_float64_logits_of_one(tmp_path: Path) -> None:
    folders = [
        write_checkpoint(tmp_path / family, family, **overrides)
        for family, overrides in CHECKPOINTS.items()
    ]
    expected = all_logits(folders, SINGLE_RANK)
    start = multiprocessing.get_context("spawn").Process
    processes = [start(target=run_rank, args=(rank, folders, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    for rank in range(2):
        actual = torch.load(tmp_path / f"logits_of_rank_{rank}.pt")
        for ours, theirs in zip(actual, expected, strict=True):
            assert ours.shape == theirs.shape
            assert float((ours - theirs).abs().max() / theirs.abs().max()) <= 1e-12


def test_a_group_of_one_returns_what_it_was_given() -> None:
    tensor = torch.ones(3)
    assert SINGLE_RANK.all_reduce(tensor) is tensor
    assert SINGLE_RANK.all_gather(tensor) is tensor


def test_a_rank_outside_its_group_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        TensorParallelGroup(rank=2, size=2)
    with pytest.raises(AssertionError):
        TensorParallelGroup(rank=0, size=2)
