"""The skinny product against float64, at odd sizes, with poisoned outputs and reused counters."""

import pytest
import torch

from nanobatch.kernels.gpu import dependent_launch
from nanobatch.kernels.gpu.matmul_rules import (
    MEASURED_RULES,
    Library,
    MatmulRule,
    Tiling,
    kernel_for,
    nearest_rules,
    num_arrival_counters,
)
from nanobatch.kernels.gpu.matrix import GpuHead, GpuMatrix
from nanobatch.kernels.gpu.skinny_matmul import skinny_matmul

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def tiling(num_splits: int = 1, block_rows: int = 16) -> Tiling:
    return Tiling(
        block_rows=block_rows,
        block_features=64,
        block_depth=32,
        num_splits=num_splits,
        num_warps=4,
        num_stages=3,
    )


def random_product(
    num_rows: int, num_features: int, depth: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden, weight, bias and their product in float64."""
    generator = torch.Generator().manual_seed(num_rows * 1000 + depth)
    hidden = torch.randn(num_rows, depth, generator=generator).to(device, dtype)
    weight = (torch.randn(num_features, depth, generator=generator) / depth**0.5).to(device, dtype)
    bias = torch.randn(num_features, generator=generator).to(device, dtype)
    return hidden, weight, bias, hidden.double() @ weight.double().t() + bias.double()


def poisoned(num_rows: int, num_features: int, like: torch.Tensor) -> torch.Tensor:
    return torch.full((num_rows, num_features), float("nan"), dtype=like.dtype, device=like.device)


def run(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tiles: Tiling
) -> torch.Tensor:
    """Return the product from a kernel whose counters must be found, and left, at zero."""
    out = poisoned(len(hidden), len(weight), hidden)
    num_counters = tiles.num_tiles(len(hidden), len(weight))
    arrivals = torch.zeros(num_counters, dtype=torch.int32, device=hidden.device)
    skinny_matmul(hidden, weight, bias=bias, out=out, arrivals=arrivals, tiling=tiles)
    first = out.clone()
    skinny_matmul(hidden, weight, bias=bias, out=out, arrivals=arrivals, tiling=tiles)
    assert torch.equal(out, first)
    assert not arrivals.any()
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("num_rows", "num_features", "depth", "num_splits"),
    [(1, 64, 64, 1), (7, 100, 72, 2), (16, 65, 200, 3), (33, 130, 96, 1), (33, 70, 136, 4)],
)
def test_product_of_odd_sizes_is_that_of_float64(
    num_rows: int,
    num_features: int,
    depth: int,
    num_splits: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    if dtype == torch.bfloat16 and device.type == "cpu":
        pytest.skip("tl.dot of bf16 is wrong in Triton's interpreter")
    hidden, weight, bias, expected = random_product(num_rows, num_features, depth, dtype, device)

    actual = run(hidden, weight, bias, tiling(num_splits))

    torch.testing.assert_close(
        actual.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


def test_a_depth_with_fewer_steps_than_splits_leaves_some_splits_empty(
    device: torch.device,
) -> None:
    hidden, weight, bias, expected = random_product(3, 64, 40, torch.float32, device)

    actual = run(hidden, weight, bias, tiling(num_splits=4))

    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def test_product_without_bias_in_fp32_is_not_rounded_to_the_inputs(device: torch.device) -> None:
    hidden, weight, bias, expected = random_product(5, 70, 64, torch.float16, device)
    out = poisoned(5, 70, hidden.float())

    skinny_matmul(hidden, weight, bias=None, out=out, arrivals=None, tiling=tiling())

    torch.testing.assert_close(out.double(), expected - bias.double(), rtol=1e-5, atol=1e-5)


def test_rows_between_other_rows_of_a_wider_tensor_are_read_and_written(
    device: torch.device,
) -> None:
    hidden, weight, bias, expected = random_product(6, 64, 64, torch.float32, device)
    wide_hidden = poisoned(6, 100, hidden)
    wide_hidden[:, :64] = hidden
    wide_out = poisoned(6, 90, hidden)

    skinny_matmul(
        wide_hidden[:, :64],
        weight,
        bias=bias,
        out=wide_out[:, :64],
        arrivals=None,
        tiling=tiling(),
    )

    torch.testing.assert_close(wide_out[:, :64].double(), expected, rtol=1e-5, atol=1e-5)
    assert wide_out[:, 64:].isnan().all()


@pytest.mark.parametrize("num_splits", [1, 2])
def test_a_row_does_not_depend_on_the_rows_beside_it(num_splits: int, device: torch.device) -> None:
    hidden, weight, bias, _ = random_product(20, 64, 96, torch.float32, device)
    poisoned_neighbours = poisoned(20, 96, hidden)
    poisoned_neighbours[17] = hidden[17]

    together = run(hidden, weight, bias, tiling(num_splits))
    out = poisoned(20, 64, hidden)
    arrivals = torch.zeros(2, dtype=torch.int32, device=device)
    skinny_matmul(
        poisoned_neighbours,
        weight,
        bias=bias,
        out=out,
        arrivals=arrivals,
        tiling=tiling(num_splits),
    )

    assert torch.equal(out[17], together[17])


def test_a_matrix_gives_the_product_whatever_kernel_it_chooses(device: torch.device) -> None:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for num_rows in (0, 1, 17, 64, 130, 300):
        hidden, weight, bias, expected = random_product(num_rows, 1000, 264, dtype, device)
        matrix = GpuMatrix(weight)

        torch.testing.assert_close(
            matrix.product(hidden, bias).double(),
            expected,
            rtol=TOLERANCE[dtype],
            atol=TOLERANCE[dtype],
        )


@pytest.mark.gpu
def test_kernels_that_start_early_in_a_graph_wait_for_what_they_read(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, weight, _, _ = random_product(16, 2048, 2048, torch.bfloat16, device)
    tiles = tiling(num_splits=4)
    arrivals = torch.zeros(64, dtype=torch.int32, device=device)

    def power() -> torch.Tensor:
        product = hidden
        for _ in range(6):
            out = torch.empty_like(product)
            skinny_matmul(product, weight, bias=None, out=out, arrivals=arrivals, tiling=tiles)
            product = out
        return product

    with monkeypatch.context() as normal:
        normal.setattr(dependent_launch, "can_start_early", lambda device: False)
        expected = power()
    power()  # compiled before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = power()

    for _ in range(20):
        actual.zero_()
        graph.replay()
        assert torch.equal(actual, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [0, 3, 200])
def test_logits_of_the_head_are_fp32(num_rows: int, device: torch.device) -> None:
    hidden, weight, bias, expected = random_product(num_rows, 4100, 256, torch.bfloat16, device)
    out = poisoned(num_rows, 4100, hidden.float())

    assert GpuHead(weight).logits(hidden, out=out) is out
    torch.testing.assert_close(out.double(), expected - bias.double(), rtol=1e-4, atol=1e-4)


def test_rules_of_a_shape_that_was_not_measured_are_those_of_the_nearest() -> None:
    small = (MatmulRule(max_rows=16, kernel=tiling()),)
    large = (MatmulRule(max_rows=64, kernel=tiling()),)
    measured = {(4096, 1024): small, (4096, 4096): large}

    assert nearest_rules(measured, 4096, 4096) == large
    assert nearest_rules(measured, 5120, 3584) == large
    assert nearest_rules(measured, 1024, 1024) == small
    assert nearest_rules({}, 1024, 1024) == ()


def test_rules_end_in_cublas() -> None:
    rules = (
        MatmulRule(max_rows=16, kernel=tiling()),
        MatmulRule(max_rows=32, kernel=Library.CUBLAS_LT),
        MatmulRule(max_rows=64, kernel=tiling(num_splits=2)),
    )

    assert kernel_for(rules, 16) == tiling()
    assert kernel_for(rules, 17) is Library.CUBLAS_LT
    assert kernel_for(rules, 64) == tiling(num_splits=2)
    assert kernel_for(rules, 65) is Library.CUBLAS
    assert num_arrival_counters(rules, 100) == 4 * 2


def test_measured_rules_ascend_and_their_tilings_fit_the_kernel() -> None:
    for (_, depth), rules in MEASURED_RULES.items():
        assert [rule.max_rows for rule in rules] == sorted({rule.max_rows for rule in rules})
        for tiles in (rule.kernel for rule in rules if isinstance(rule.kernel, Tiling)):
            stage = (tiles.block_rows + tiles.block_features) * tiles.block_depth
            assert stage * 2 * tiles.num_stages <= 227 * 1024
            assert tiles.block_features >= 64
            assert depth // tiles.block_depth >= tiles.num_splits
