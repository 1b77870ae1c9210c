"""A Qwen3 model of a chosen size that exists as a configuration only, for measuring speed.

Writes what an engine reads before weights: `config.json` and a tokenizer of single bytes. The
weights are drawn by `random_weights`. Imports no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nanobatch.models.source import ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModelSize:
    """The sizes of a model, as in `ModelConfig`."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    tie_word_embeddings: bool
    head_dim: int = 128
    vocab_size: int = 151_936


RANDOM_MODEL_SIZES: Mapping[str, RandomModelSize] = {
    "0.6b": RandomModelSize(
        num_layers=28,
        hidden_size=1024,
        num_heads=16,
        num_kv_heads=8,
        intermediate_size=3072,
        tie_word_embeddings=True,
    ),
    "4b": RandomModelSize(
        num_layers=36,
        hidden_size=2560,
        num_heads=32,
        num_kv_heads=8,
        intermediate_size=9728,
        tie_word_embeddings=True,
    ),
    "8b": RandomModelSize(
        num_layers=36,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        intermediate_size=12_288,
        tie_word_embeddings=False,
    ),
    "smoke": RandomModelSize(
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=128,
        tie_word_embeddings=True,
        head_dim=16,
        vocab_size=512,
    ),
}
"""Those of Qwen3, by their names, and one for tests."""

INITIALIZER_STD = 0.02
CONTEXT_LEN = 40_960


def write_random_model(folder: Path, size_name: str) -> ModelSource:
    """Write a model without weights into a folder, and return it.

    Args:
        folder: Created if missing.
        size_name: One of `RANDOM_MODEL_SIZES`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = _hugging_face_config(RANDOM_MODEL_SIZES[size_name])
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _write_byte_tokenizer(folder)
    return ModelSource(kind="folder", path=folder, name=f"random-{size_name}")


def _hugging_face_config(size: RandomModelSize) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": size.hidden_size,
        "intermediate_size": size.intermediate_size,
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "num_key_value_heads": size.num_kv_heads,
        "head_dim": size.head_dim,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "rope_scaling": None,
        "max_position_embeddings": CONTEXT_LEN,
        "vocab_size": size.vocab_size,
        "tie_word_embeddings": size.tie_word_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
        "initializer_range": INITIALIZER_STD,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": size.num_layers,
    }


def _write_byte_tokenizer(folder: Path) -> None:
    """Write a tokenizer of 256 bytes and an end, so that any text can be encoded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>"]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
