"""Arrays that are written over in place."""

import numpy as np
import pytest
import torch

from nanobatch.kernels.static_arrays import StaticArrays


def test_arrays_stay_where_they_are_while_their_content_changes() -> None:
    arrays = StaticArrays({"slots": 5, "blocks": 100}, device=torch.device("cpu"))
    slots, blocks = arrays["slots"], arrays["blocks"]
    arrays.upload({"slots": np.arange(5, dtype=np.int32), "blocks": np.arange(7, dtype=np.int32)})
    arrays.upload(
        {
            "slots": np.array([[9, 8], [7, 6]], dtype=np.int32),
            "blocks": np.array([4], dtype=np.int32),
        }
    )
    assert slots.tolist()[:4] == [9, 8, 7, 6]
    assert blocks.tolist()[:1] == [4]
    assert (slots.numel(), blocks.numel()) == (5, 100)
    assert (slots.data_ptr() % 16, blocks.data_ptr() % 16) == (0, 0)


def test_array_beyond_its_room_is_not_written_into_the_next() -> None:
    arrays = StaticArrays({"slots": 2, "blocks": 4}, device=torch.device("cpu"))
    with pytest.raises(AssertionError, match="over capacity"):
        arrays.upload({"slots": np.arange(3, dtype=np.int32)})
