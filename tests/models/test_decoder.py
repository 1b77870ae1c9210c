from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanobatch.config import ModelConfig, RopeConfig
from nanobatch.errors import ConfigError
from nanobatch.models.decoder import DecoderModel, check_divisible
from nanobatch.models.loader import load_model
from nanobatch.models.source import read_model_config, resolve_model
from tests.checkpoints import FAMILIES, build_reference, write_checkpoint
from tests.models.dense_reference import DenseDecoder
from tests.models.steps import CPU, PagedSequences, load, random_prompts
from tests.tiny_tokenizer import VOCAB_SIZE

LENGTHS = (61, 1, 17, 40)
SHAPES: dict[str, dict[str, Any]] = {
    "one_kv_head_per_head": {"num_key_value_heads": 4},
    "one_kv_head_for_all": {"num_key_value_heads": 1},
    "head_dim_of_its_own": {"head_dim": 10, "num_attention_heads": 6, "num_key_value_heads": 3},
    "untied_head": {"tie_word_embeddings": False},
    "tied_head": {"tie_word_embeddings": True},
    "odd_sizes": {"hidden_size": 36, "intermediate_size": 51, "vocab_size": 333, "head_dim": 6},
}


def reference_logits(family: str, prompts: list[list[int]], **overrides: Any) -> list[torch.Tensor]:
    model = build_reference(family, **overrides)
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0] for ids in prompts]


def max_relative_error(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return max(
        float((ours - theirs).abs().max() / theirs.abs().max())
        for ours, theirs in zip(actual, expected, strict=True)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_for_every_family_and_chunking(
    family: str, tmp_path: Path
) -> None:
    model = load(write_checkpoint(tmp_path / "model", family))
    prompts = random_prompts(LENGTHS, vocab_size=VOCAB_SIZE)
    expected = reference_logits(family, prompts)
    for block_size, chunk in ((16, 100), (16, 7), (5, 16), (1, 1)):
        actual = PagedSequences(model, prompts, block_size=block_size).run(chunk)
        assert max_relative_error(actual, expected) <= 1e-5, (block_size, chunk)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_logits_equal_transformers_for_every_shape(family: str, shape: str, tmp_path: Path) -> None:
    overrides = SHAPES[shape]
    model = load(write_checkpoint(tmp_path / "model", family, **overrides))
    prompts = random_prompts(LENGTHS, vocab_size=VOCAB_SIZE)
    expected = reference_logits(family, prompts, **overrides)
    actual = PagedSequences(model, prompts).run(11)
    assert max_relative_error(actual, expected) <= 1e-5


def dense_decoder(family: str, model_config: ModelConfig) -> DenseDecoder:
    tensors = build_reference(family).state_dict()
    if model_config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    return DenseDecoder(
        weights={name: tensor.double().numpy() for name, tensor in tensors.items()},
        num_heads=model_config.num_heads,
        num_kv_heads=model_config.num_kv_heads,
        head_dim=model_config.head_dim,
        theta=model_config.rope.theta,
        eps=model_config.rms_norm_eps,
        windows=model_config.sliding_windows,
    )


def float64_error(family: str, model: DecoderModel, model_config: ModelConfig) -> float:
    prompts = random_prompts((45, 30), vocab_size=VOCAB_SIZE)
    dense = dense_decoder(family, model_config)
    expected = [torch.from_numpy(dense.logits(ids)) for ids in prompts]
    return max_relative_error(PagedSequences(model, prompts, block_size=7).run(9), expected)


@pytest.mark.parametrize("family", ["llama", "llama_bias", "mistral", "qwen2_window", "qwen3"])
def test_float64_logits_equal_a_dense_decoder_written_independently(
    family: str, tmp_path: Path
) -> None:
    source = resolve_model(str(write_checkpoint(tmp_path / "model", family)))
    model_config = read_model_config(source)
    model = load(source.path, dtype=torch.float64)
    assert float64_error(family, model, model_config) <= 1e-12


MUTATIONS = ("rope_theta", "softmax_scale", "position", "window", "norm_eps")


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_float64_comparison_notices_a_small_mistake(mutation: str, tmp_path: Path) -> None:
    source = resolve_model(str(write_checkpoint(tmp_path / "model", "mistral")))
    model_config = read_model_config(source)
    wrong_config = model_config
    if mutation == "rope_theta":
        wrong_config = replace(model_config, rope=RopeConfig(theta=10_001.0))
    elif mutation == "window":
        wrong_config = replace(model_config, sliding_windows=(24, 25, 24))
    elif mutation == "norm_eps":
        wrong_config = replace(model_config, rms_norm_eps=1.1e-5)
    model = load_model(source, wrong_config, dtype=torch.float64, device=CPU)
    if mutation == "softmax_scale":
        model.layers[1].attention.scale *= 1.0001  # type: ignore[union-attr, operator]
    elif mutation == "position":
        rotary_of = model.rotary.forward
        # A shift of every position changes nothing: rotary embedding is relative.
        model.rotary.forward = lambda positions: rotary_of(positions + (positions > 20))  # type: ignore[method-assign]
    assert float64_error("mistral", model, model_config) > 1e-7


def test_a_row_alone_and_among_others_gives_the_same_float64_logits(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "model", "qwen2_window"), dtype=torch.float64)
    prompts = random_prompts((50, 9, 33, 34, 35), vocab_size=VOCAB_SIZE)
    together = PagedSequences(model, prompts).run(1)
    alone = [PagedSequences(model, [ids], seed=1).run(1)[0] for ids in prompts]
    assert max_relative_error(together, alone) <= 1e-13


def test_only_the_tokens_asked_for_get_logits(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "model"), dtype=torch.float64)
    prompts = random_prompts((20, 12), vocab_size=VOCAB_SIZE)
    everything = torch.cat(PagedSequences(model, prompts).step((20, 12)))
    asked = [31, 0, 19, 19]
    actual = PagedSequences(model, prompts).step_for((20, 12), logits_indices=asked)
    assert actual.shape == (4, VOCAB_SIZE)
    assert float((actual - everything[asked]).abs().max()) < 1e-12


def test_without_indices_every_token_gets_logits_in_order(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "model"))
    prompts = random_prompts((20, 12), vocab_size=VOCAB_SIZE)
    everything = torch.cat(PagedSequences(model, prompts).step((20, 12)))
    actual = PagedSequences(model, prompts).step_for((20, 12), logits_indices=None)
    assert torch.equal(actual, everything)


def test_a_step_without_logits_still_fills_the_cache(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "model"), dtype=torch.float64)
    prompts = random_prompts((20,), vocab_size=VOCAB_SIZE)
    expected = PagedSequences(model, prompts).step((20,))[0][-1]
    sequences = PagedSequences(model, prompts)
    assert sequences.step_for((19,), logits_indices=[]).shape == (0, VOCAB_SIZE)
    assert float((sequences.step((1,))[0][0] - expected).abs().max()) < 1e-12


def test_bfloat16_logits_are_fp32_products_of_the_rounded_hidden_states(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", tie_word_embeddings=True)
    model = load(folder, dtype=torch.bfloat16)
    hidden = torch.randn(5, 48, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = hidden.double() @ model.head.weight.double().T
    actual = model.compute_logits(hidden)
    assert actual.dtype == torch.float32
    # Rounding to bfloat16 would be off by up to 2**-9 of the value.
    assert bool(((actual - expected).abs() <= expected.abs() * 2**-17 + 1e-5).all())


def test_kv_specs_say_what_a_token_costs(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "model", "qwen2_window"), dtype=torch.bfloat16)
    specs = model.kv_cache_specs()
    assert [spec.window for spec in specs] == [None, 20, 20]
    assert [spec.bytes_per_token for spec in specs] == [2 * 2 * 16 * 2] * 3
    assert sum(spec.bytes_per_token for spec in specs) == model.model_config.kv_bytes_per_token(2)


def test_weight_bytes_count_a_tied_head_once(tmp_path: Path) -> None:
    tied = load(write_checkpoint(tmp_path / "tied", "llama", tie_word_embeddings=True))
    untied = load(write_checkpoint(tmp_path / "untied", "llama", tie_word_embeddings=False))
    assert untied.num_weight_bytes - tied.num_weight_bytes == VOCAB_SIZE * 48 * 4


def test_ranks_that_cannot_share_the_heads_are_refused(tmp_path: Path) -> None:
    model_config = read_model_config(resolve_model(str(write_checkpoint(tmp_path / "model"))))
    with pytest.raises(ConfigError) as caught:
        check_divisible(model_config, 3)
    assert caught.value.message == "num_heads is 4, which 3 ranks cannot share evenly"
    check_divisible(model_config, 4)  # two ranks share each KV head
    assert np.gcd(4, model_config.num_kv_heads) == 2
