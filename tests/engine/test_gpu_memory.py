"""The steps by which a GPU's memory is measured are ones that can happen, at any setting."""

import numpy as np
import pytest

from nanobatch.engine.gpu_memory import worst_decode, worst_prefill


@pytest.mark.parametrize(
    ("max_num_seqs", "max_num_tokens", "num_seqs", "num_tokens"),
    [(1024, 32_768, 1024, 32_768), (3, 1_000, 3, 1_000), (1, 32_768, 1, 500), (9, 4, 4, 4)],
)
def test_the_largest_prefill_passes_neither_the_context_nor_the_budget(
    max_num_seqs: int, max_num_tokens: int, num_seqs: int, num_tokens: int
) -> None:
    batch = worst_prefill(
        max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens, max_model_len=500, block_size=16
    )
    assert (batch.num_seqs, batch.num_tokens) == (num_seqs, num_tokens)
    assert len(batch.logits_indices) == num_seqs
    assert batch.positions.max() < 500
    assert len(np.unique(batch.slot_mapping)) == num_tokens
    assert batch.slot_mapping.max() < len(batch.block_tables.block_ids) * 16


def test_the_largest_decode_step_has_every_row_whatever_a_prefill_holds() -> None:
    batch = worst_decode(9)
    assert batch.num_seqs == 9
    assert batch.block_tables.block_ids.max() == 0  # a pool of one block will do
