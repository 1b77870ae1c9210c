"""One step's attention is planned once for each distinct window."""

import numpy as np
import torch

from nanobatch.kernels.attention_metadata import AttentionMetadata
from nanobatch.kernels.torch_attention import plan_model_attention


def test_layers_with_the_same_window_share_a_plan() -> None:
    metadata = AttentionMetadata.from_arrays(
        query_start_loc=np.array([0, 3], np.int32),
        seq_lens=np.array([3], np.int32),
        block_tables=np.array([[1]], np.int32),
        slot_mapping=np.array([4, 5, 6], np.int64),
        device=torch.device("cpu"),
    )
    attention = plan_model_attention(metadata, block_size=4, windows=(None, 2, 2, None))
    assert list(attention.by_window) == [None, 2]
    assert attention.slot_mapping is metadata.slot_mapping

    pool = torch.full((2, 4, 1, 8), torch.nan)
    pool[1, :3] = torch.eye(3, 8)[:, None]  # each value names its token
    query = torch.zeros(3, 2, 8)  # attends evenly to all that it sees
    everything, windowed = (
        attention.by_window[window].attend(
            query, pool[1, :3], pool[1, :3], key_cache=pool, value_cache=pool, scale=1.0
        )
        for window in (None, 2)
    )
    assert torch.allclose(everything[2, 0, :3], torch.full((3,), 1 / 3))
    assert torch.allclose(windowed[2, 0, :3], torch.tensor([0.0, 0.5, 0.5]))
