import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from nanobatch.config import RopeConfig
from nanobatch.kernels.torch_kernels import rotate
from nanobatch.layers.rotary import RotaryEmbedding, inverse_frequencies

CPU = torch.device("cpu")
LLAMA_3_1 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
QWEN_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32_768,
}
SCALINGS: dict[str, dict[str, object]] = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "large_theta": {"rope_type": "default", "rope_theta": 1_000_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.5},
    "llama3": LLAMA_3_1,
    "llama3_of_1b": {**LLAMA_3_1, "factor": 32.0},
    "yarn": QWEN_YARN,
    "yarn_betas": {**QWEN_YARN, "beta_fast": 24.0, "beta_slow": 2.0},
    "yarn_not_truncated": {**QWEN_YARN, "truncate": False},
    "yarn_attention_factor": {**QWEN_YARN, "attention_factor": 0.9},
    "yarn_mscales": {**QWEN_YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn_tiny": {**QWEN_YARN, "rope_theta": 10_000.0, "original_max_position_embeddings": 7},
}


def rope_config(scaling: dict[str, object]) -> RopeConfig:
    fields = {key: value for key, value in scaling.items() if key != "rope_theta"}
    return RopeConfig(theta=scaling["rope_theta"], **fields)  # type: ignore[arg-type]


def reference(scaling: dict[str, object], head_dim: int) -> LlamaRotaryEmbedding:
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=131_072,
        rope_parameters=dict(scaling),
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("head_dim", [64, 128, 10])
def test_cos_and_sin_equal_transformers_bit_for_bit(name: str, head_dim: int) -> None:
    scaling = SCALINGS[name]
    positions = torch.tensor([0, 1, 2, 63, 64, 1000, 8191, 40_000, 131_071])
    rotary = RotaryEmbedding(
        rope_config(scaling), head_dim, max_positions=131_072, dtype=torch.float32, device=CPU
    )
    cos, sin = rotary.forward(positions.int())
    expected_cos, expected_sin = reference(scaling, head_dim)(torch.zeros(1), positions[None])
    half = head_dim // 2
    assert torch.equal(cos, expected_cos[0, :, :half])
    assert torch.equal(sin, expected_sin[0, :, :half])


@pytest.mark.parametrize("name", SCALINGS)
def test_float64_frequencies_are_the_same_formula_with_more_digits(name: str) -> None:
    rope = rope_config(SCALINGS[name])
    exact = inverse_frequencies(rope, 128, dtype=torch.float64)
    rounded = inverse_frequencies(rope, 128, dtype=torch.float32)
    assert exact.dtype == torch.float64
    assert torch.allclose(exact, rounded.double(), rtol=3e-6, atol=0)
    assert not torch.equal(exact, rounded.double())


def test_rotation_equals_transformers_bit_for_bit() -> None:
    rng = torch.Generator().manual_seed(0)
    heads = torch.randn(9, 3, 16, generator=rng)
    angles = torch.randn(9, 8, generator=rng)
    cos, sin = angles.cos(), angles.sin()
    expected, _ = apply_rotary_pos_emb(
        heads, heads, cos.repeat(1, 2), sin.repeat(1, 2), unsqueeze_dim=1
    )
    before = heads.clone()
    assert torch.equal(rotate(heads, cos, sin), expected)
    assert torch.equal(heads, before)


def test_a_rotation_keeps_the_length_of_every_pair() -> None:
    rotary = RotaryEmbedding(RopeConfig(), 8, max_positions=501, dtype=torch.float64, device=CPU)
    heads = torch.ones(3, 1, 8, dtype=torch.float64)
    turned = rotate(heads, *rotary.forward(torch.tensor([0, 5, 500])))
    assert torch.equal(turned[0], heads[0])
    lengths = turned[..., :4] ** 2 + turned[..., 4:] ** 2
    assert torch.allclose(lengths, torch.full_like(lengths, 2.0), atol=1e-14)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the table is for GPUs")
@pytest.mark.parametrize("max_positions", [9000, 1 << 24])  # from a table, and too many for one
def test_a_gpu_gets_the_same_cosines_and_sines(max_positions: int) -> None:
    rope, positions = rope_config(LLAMA_3_1), torch.tensor([0, 8999, 5, 5], dtype=torch.int32)
    on_cpu, on_gpu = (
        RotaryEmbedding(
            rope,
            128,
            max_positions=max_positions,
            dtype=torch.float32,
            device=torch.device(name),
        )
        for name in ("cpu", "cuda")
    )
    assert (on_gpu.table is None) == (max_positions > 9000)
    expected, actual = on_cpu.forward(positions), on_gpu.forward(positions.cuda())
    for ours, theirs in zip(actual, expected, strict=True):
        assert float((ours.cpu() - theirs).abs().max()) < 1e-6
