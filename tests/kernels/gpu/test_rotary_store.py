"""Head norms, rotation and store in one kernel, against the same steps in float64."""

from dataclasses import dataclass

import pytest
import torch

from nanobatch.kernels.kernel_set import HeadNorms
from nanobatch.kernels.torch_kernels import TorchKernels
from tests.kernels.gpu.dtypes import DTYPES

TOLERANCES = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
"""Of the largest element: three roundings with head norms, one without."""

BLOCK_SIZE, NUM_BLOCKS = 4, 5


@dataclass(frozen=True, kw_only=True)
class Step:
    """Random projections of seven tokens over a NaN-filled pool; two tokens have no slot."""

    qkv: torch.Tensor
    rotation: tuple[torch.Tensor, torch.Tensor]
    norms: HeadNorms | None
    num_heads: int
    slot_mapping: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor

    @classmethod
    def random(
        cls,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        has_norms: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "Step":
        generator = torch.Generator().manual_seed(head_dim + num_heads)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        angles = random(7, head_dim // 2) * 100
        table = torch.cat((angles.cos(), angles.sin()), dim=1).to(device)
        pool_shape = (NUM_BLOCKS, BLOCK_SIZE, num_kv_heads, head_dim)
        weights = (1 + 0.1 * random(2, head_dim)).to(dtype).to(device)
        qkv = random(7, (num_heads + 2 * num_kv_heads) * head_dim)
        return cls(
            qkv=qkv.to(dtype).to(device),
            rotation=(table[:, : head_dim // 2], table[:, head_dim // 2 :]),
            norms=HeadNorms(query_weight=weights[0], key_weight=weights[1], eps=1e-6)
            if has_norms
            else None,
            num_heads=num_heads,
            slot_mapping=torch.tensor([9, 3, -1, 19, 0, -1, 8], device=device),
            key_cache=torch.full(pool_shape, torch.nan, dtype=dtype, device=device),
            value_cache=torch.full(pool_shape, torch.nan, dtype=dtype, device=device),
        )

    def in_float64(self) -> "Step":
        cos, sin = self.rotation
        norms = self.norms and HeadNorms(
            query_weight=self.norms.query_weight.double(),
            key_weight=self.norms.key_weight.double(),
            eps=self.norms.eps,
        )
        return Step(
            qkv=self.qkv.double(),
            rotation=(cos.double(), sin.double()),
            norms=norms,
            num_heads=self.num_heads,
            slot_mapping=self.slot_mapping,
            key_cache=self.key_cache.double(),
            value_cache=self.value_cache.double(),
        )

    def run(self, *, in_triton: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        from nanobatch.kernels.gpu.triton_kernels import TritonKernels

        kernels = TritonKernels() if in_triton else TorchKernels()
        return kernels.rotate_and_store(
            self.qkv,
            self.rotation,
            norms=self.norms,
            num_heads=self.num_heads,
            slot_mapping=self.slot_mapping,
            key_cache=self.key_cache,
            value_cache=self.value_cache,
        )


def assert_close(actual: torch.Tensor, exact: torch.Tensor) -> None:
    assert torch.equal(actual.isnan(), exact.isnan())
    error = (actual.double() - exact).nan_to_num().abs()
    assert float(error.max()) <= TOLERANCES[actual.dtype] * float(exact.nan_to_num().abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(4, 2, 64), (3, 3, 64), (16, 1, 128), (9, 3, 80), (5, 5, 96), (2, 1, 256), (6, 3, 10)],
)
def test_heads_are_normalised_rotated_and_stored(
    device: torch.device,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    has_norms: bool,
    dtype: torch.dtype,
) -> None:
    step = Step.random(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        has_norms=has_norms,
        dtype=dtype,
        device=device,
    )
    reference = step.in_float64()
    values_before = step.qkv.clone().view(7, -1, head_dim)[:, -num_kv_heads:]
    expected = reference.run(in_triton=False)
    actual = step.run(in_triton=True)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.stride(-1) == 1
        assert_close(ours, theirs)
    assert torch.equal(actual[2], values_before)
    assert_close(step.key_cache, reference.key_cache)
    assert_close(step.value_cache, reference.value_cache)
    stored = step.slot_mapping[step.slot_mapping >= 0]
    assert torch.equal(step.key_cache.flatten(0, 1)[stored], actual[1][step.slot_mapping >= 0])


def test_a_token_is_the_same_alone(device: torch.device) -> None:
    def make() -> Step:
        return Step.random(
            num_heads=4,
            num_kv_heads=2,
            head_dim=64,
            has_norms=True,
            dtype=torch.float32,
            device=device,
        )

    together, alone = make(), make()
    query, _, _ = together.run(in_triton=True)
    cos, sin = alone.rotation
    one = Step(
        qkv=alone.qkv[3:4],
        rotation=(cos[3:4], sin[3:4]),
        norms=alone.norms,
        num_heads=4,
        slot_mapping=alone.slot_mapping[3:4],
        key_cache=alone.key_cache,
        value_cache=alone.value_cache,
    )
    assert torch.equal(one.run(in_triton=True)[0][0], query[3])
    assert torch.equal(alone.key_cache[4, 3], together.key_cache[4, 3])


def test_no_tokens_store_nothing(device: torch.device) -> None:
    step = Step.random(
        num_heads=2,
        num_kv_heads=1,
        head_dim=64,
        has_norms=False,
        dtype=torch.float32,
        device=device,
    )
    cos, sin = step.rotation
    empty = Step(
        qkv=step.qkv[:0],
        rotation=(cos[:0], sin[:0]),
        norms=None,
        num_heads=2,
        slot_mapping=step.slot_mapping[:0],
        key_cache=step.key_cache,
        value_cache=step.value_cache,
    )
    assert [part.shape[0] for part in empty.run(in_triton=True)] == [0, 0, 0]
    assert bool(step.key_cache.isnan().all())
