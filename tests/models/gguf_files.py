"""Writes GGUF files with the `gguf` package from what `build_reference` makes.

Follows llama.cpp's converter: its tensor names, its permuted q and k rows for Llama, its
rotary divisors for Llama 3.1.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

Array = npt.NDArray[Any]

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    architecture: str,
    quantization: str = "F32",
    metadata: Mapping[str, int | float | str | bool] | None = None,
    extra_tensors: Mapping[str, Array] | None = None,
) -> Path:
    """Write a model's weights and sizes; norms and biases stay fp32, as in the converter."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_sizes(model.config, architecture), **(metadata or {})}.items():
        _add(writer, key, value)
    writer.add_array("tokenizer.ggml.tokens", ["a", "é", ""])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    quantization_type = gguf.GGMLQuantizationType[quantization]
    for name, values in {**_tensors(model, architecture), **(extra_tensors or {})}.items():
        kept = quantization_type if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(values, kept), raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _sizes(config: Any, architecture: str) -> dict[str, int | float | str]:
    sizes = {
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    return {f"{architecture}.{key}": value for key, value in sizes.items()}


def _tensors(model: PreTrainedModel, architecture: str) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if name == "lm_head.weight":
            if not model.config.tie_word_embeddings:
                tensors["output.weight"] = values
        elif name == "model.embed_tokens.weight":
            tensors["token_embd.weight"] = values
        elif name == "model.norm.weight":
            tensors["output_norm.weight"] = values
        else:
            _, _, layer, *middle, kind = name.split(".")
            module = ".".join(middle)
            if architecture == "llama" and module in ("self_attn.q_proj", "self_attn.k_proj"):
                is_query = module.endswith("q_proj")
                config = model.config
                num_heads = config.num_attention_heads if is_query else config.num_key_value_heads
                values = _permuted(values, num_heads)
            tensors[f"blk.{layer}.{_NAMES[module]}.{kind}"] = values
    return tensors


def _permuted(values: Array, num_heads: int) -> Array:
    """Move row i + d / 2 of each head next to row i."""
    head_dim = len(values) // num_heads
    order = [
        head * head_dim + half * (head_dim // 2) + pair
        for head in range(num_heads)
        for pair in range(head_dim // 2)
        for half in range(2)
    ]
    return np.ascontiguousarray(values[order])


def _add(writer: gguf.GGUFWriter, key: str, value: int | float | str | bool) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)
