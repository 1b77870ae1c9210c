"""Launch parameters of decode attention: numbers only."""

import pytest

from nanobatch.kernels.gpu.decode_tuning import (
    SMALL,
    TUNING_OF_PAIRS,
    TUNING_OF_SHARING_PAIRS,
    fitting_stages,
    tuning_for,
)


def test_tunings_ascend_with_the_rows() -> None:
    for table, has_shared in ((TUNING_OF_PAIRS, False), (TUNING_OF_SHARING_PAIRS, True)):
        sizes = [most for most, _ in table]
        assert sizes == sorted(set(sizes))
        assert tuning_for(sizes[0], has_shared=has_shared) == table[0][1]
        assert tuning_for(sizes[-1] + 1, has_shared=has_shared) == SMALL


@pytest.mark.parametrize(
    ("shared_kib", "tile_kib", "num_stages", "expected"),
    [
        (217, 16, 7, 7),
        (153, 16, 7, 7),
        (89, 16, 7, 6),
        (89, 16, 5, 5),
        (89, 4, 7, 7),
        (20, 16, 7, 4),
    ],
)
def test_a_pipeline_is_as_deep_as_shared_memory_allows(
    shared_kib: int, tile_kib: int, num_stages: int, expected: int
) -> None:
    """An H200, an A100 and an L40S, less than 10 KiB for the rest; stages 5 and 6 are two tiles."""
    fitting = fitting_stages(num_stages, tile_bytes=tile_kib << 10, most_bytes=shared_kib << 10)
    assert fitting == expected
