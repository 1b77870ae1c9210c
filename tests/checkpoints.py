"""Writes tiny random checkpoints with transformers itself, each with a tokenizer.

Weights are large (initializer_range 0.25) and norms and biases are random too: at the usual
0.02 attention is uniform and every bias is zero, so that a wrong implementation would pass.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tests.tiny_tokenizer import CHAT_TEMPLATE, VOCAB_SIZE, write_tokenizer

_SIZES: Mapping[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
_LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}

_FAMILIES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "llama": ("Llama", {}),
    "llama3": ("Llama", {"rope_parameters": _LLAMA3_ROPE}),
    "llama_linear": ("Llama", {"rope_parameters": _LINEAR_ROPE}),
    "llama_yarn": ("Llama", {"rope_parameters": _YARN_ROPE}),
    "llama_bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2_window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
}

FAMILIES = tuple(_FAMILIES)
"""What `write_checkpoint` can write."""

_WORDS = (
    "Ġthe Ġand Ġis Ġof Ġcapital Ġreview Ġgood Ġbad Ġanswer Ġquestion Ġpositive Ġnegative "
    "Ġname user ssistant"
)
"""Each prefix of these is a token, until the vocabulary is full (Ġ is a byte-level space)."""


def write_checkpoint(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    chat_template: str | None = CHAT_TEMPLATE,
    max_shard_size: str = "5GB",
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Path:
    """Write a checkpoint and return its folder. The same arguments give the same weights.

    Args:
        folder: Created if missing.
        family: One of `FAMILIES`.
        seed: Seed of the weights.
        chat_template: Jinja text for the tokenizer; None writes none.
        max_shard_size: Largest weight file, such as "40KB", as transformers takes it.
        dtype: Data type of the weights.
        **overrides: Fields of the transformers configuration, over the family's.
    """
    model = build_reference(family, seed=seed, **overrides)
    torch.nn.Module.to(model, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    write_tokenizer(folder, chat_template=chat_template)
    return folder


def build_reference(family: str = "llama", *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return the transformers model of a family with random weights, in fp32."""
    class_prefix, changes = _FAMILIES[family]
    config_class = getattr(transformers, f"{class_prefix}Config")
    model_class = getattr(transformers, f"{class_prefix}ForCausalLM")
    fields = {**_SIZES, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = config_class(**{**fields, **changes, **overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = model_class(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
                elif name.endswith("bias"):
                    parameter.uniform_(-0.5, 0.5)
    return model
