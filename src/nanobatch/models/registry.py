"""Which checkpoints nanobatch runs, and what their `config.json` means.

Reads a Hugging Face configuration as transformers 4 (`rope_theta`, `rope_scaling`) or 5
(`rope_parameters`) writes it. What would change a model's output and is not implemented is
refused by name, before any weight is read. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from nanobatch.config import ModelConfig
from nanobatch.errors import ModelError
from nanobatch.models.config_fields import ConfigFields
from nanobatch.models.rope import parse_rope

CheckpointDtype = Literal["bfloat16", "float16", "float32", "float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How one family differs from the others, and what it assumes where a file is silent.

    Attributes:
        default_context: `max_position_embeddings` of a file that has none.
        default_num_kv_heads: `num_key_value_heads` of a file that has none; None means one
            per query head.
        default_head_dim: `head_dim` of a file that has none; None means hidden size / heads.
        has_qk_norm: Queries and keys are normalised per head.
        qkv_bias: Whether q, k and v have biases; `config` asks `attention_bias`.
        o_bias: Whether the output projection has a bias.
        mlp_bias: Whether the MLP has biases; `config` asks `mlp_bias`.
        windows: Which layers attend to a sliding window: none, all where `sliding_window` is
            set, or those that `layer_types` (else `max_window_layers`) names where
            `use_sliding_window` is set.
    """

    default_context: int
    default_num_kv_heads: int | None = None
    default_head_dim: int | None = None
    has_qk_norm: bool = False
    qkv_bias: Literal["always", "never", "config"] = "never"
    o_bias: Literal["never", "config"] = "never"
    mlp_bias: Literal["never", "config"] = "never"
    windows: Literal["none", "all_layers", "by_layer_type"] = "none"


ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": Architecture(
        default_context=2048, qkv_bias="config", o_bias="config", mlp_bias="config"
    ),
    "MistralForCausalLM": Architecture(
        default_context=131_072, default_num_kv_heads=8, windows="all_layers"
    ),
    "Qwen2ForCausalLM": Architecture(
        default_context=32_768, default_num_kv_heads=32, qkv_bias="always", windows="by_layer_type"
    ),
    "Qwen3ForCausalLM": Architecture(
        default_context=32_768,
        default_num_kv_heads=32,
        default_head_dim=128,
        has_qk_norm=True,
        qkv_bias="config",
        o_bias="config",
        windows="by_layer_type",
    ),
}


def parse_model_config(values: Mapping[str, object], *, model_name: str) -> ModelConfig:
    """Turn the content of a `config.json` into a `ModelConfig`.

    Args:
        values: The parsed file.
        model_name: What error messages call the model.

    Raises:
        ModelError: The architecture or one of its settings is not supported, or a field is
            missing or makes no sense.
    """
    name = _architecture_name(values, model_name)
    fields = ConfigFields(values, model_name=model_name)
    _refuse_unsupported(fields)
    architecture = ARCHITECTURES[name]
    num_heads = fields.positive_integer("num_attention_heads")
    hidden_size = fields.positive_integer("hidden_size")
    num_layers = fields.positive_integer("num_hidden_layers")
    context = fields.positive_integer("max_position_embeddings", architecture.default_context)
    head_dim = fields.optional_positive_integer("head_dim", architecture.default_head_dim)
    model_config = ModelConfig(
        architecture=name,
        vocab_size=fields.positive_integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.positive_integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.optional_positive_integer(
            "num_key_value_heads", architecture.default_num_kv_heads
        )
        or num_heads,
        head_dim=head_dim or hidden_size // num_heads,
        max_position_embeddings=context,
        rope=parse_rope(fields, context=context),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", default=False),
        has_qk_norm=architecture.has_qk_norm,
        has_qkv_bias=_has_bias(architecture.qkv_bias, "attention_bias", fields),
        has_o_bias=_has_bias(architecture.o_bias, "attention_bias", fields),
        has_mlp_bias=_has_bias(architecture.mlp_bias, "mlp_bias", fields),
        sliding_windows=_sliding_windows(architecture, fields, num_layers),
        dtype=_checkpoint_dtype(values),
    )
    _check_sizes(model_config, model_name)
    return model_config


def _architecture_name(values: Mapping[str, object], model_name: str) -> str:
    names = values.get("architectures")
    supported = ", ".join(ARCHITECTURES)
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelError(
            f"{model_name}: config.json names no architecture", hint=f"supported: {supported}"
        )
    if names[0] not in ARCHITECTURES:
        raise ModelError(
            f"{model_name}: architecture {names[0]} is not supported",
            hint=f"supported: {supported}",
        )
    return names[0]


def _refuse_unsupported(fields: ConfigFields) -> None:
    """Refuse settings that would change the output and are not implemented."""
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise fields.error(f"hidden_act {activation!r} is not supported; supported: silu")
    for key in ("quantization_config", "compression_config"):
        quantization = fields.get(key)
        if quantization is not None:
            method = quantization.get("quant_method") if isinstance(quantization, dict) else None
            raise fields.error(
                f"quantized weights ({key}: {method or 'unknown method'}) are not supported",
                hint="use the unquantized checkpoint or a .gguf file of the model",
            )


def _has_bias(rule: str, key: str, fields: ConfigFields) -> bool:
    return fields.boolean(key, default=False) if rule == "config" else rule == "always"


def _sliding_windows(
    architecture: Architecture, fields: ConfigFields, num_layers: int
) -> tuple[int | None, ...]:
    """Return the attention window of each layer."""
    full: tuple[int | None, ...] = (None,) * num_layers
    if architecture.windows == "none":
        return full
    window = fields.optional_positive_integer("sliding_window", 4096)
    if architecture.windows == "all_layers":
        return (window,) * num_layers
    if not fields.boolean("use_sliding_window", default=False) or window is None:
        window = None
    layer_types = fields.get("layer_types")
    if layer_types is None:
        first_windowed = fields.integer("max_window_layers", 28)
        return tuple(window if layer >= first_windowed else None for layer in range(num_layers))
    return _windows_of_types(layer_types, fields, num_layers=num_layers, window=window)


def _windows_of_types(
    layer_types: object, fields: ConfigFields, *, num_layers: int, window: int | None
) -> tuple[int | None, ...]:
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise fields.error(f"layer_types must name the attention of all {num_layers} layers")
    unknown = [name for name in layer_types if name not in ("full_attention", "sliding_attention")]
    if unknown:
        raise fields.error(f"layer type {unknown[0]!r} is not supported")
    if window is None and "sliding_attention" in layer_types:
        raise fields.error("layer_types has sliding_attention, but no sliding_window is in use")
    return tuple(window if name == "sliding_attention" else None for name in layer_types)


def _checkpoint_dtype(values: Mapping[str, object]) -> str:
    name = str(values.get("dtype") or values.get("torch_dtype") or "float32")
    name = name.removeprefix("torch.")
    return name if name in get_args(CheckpointDtype) else "float32"


def _check_sizes(model_config: ModelConfig, model_name: str) -> None:
    if model_config.num_heads % model_config.num_kv_heads:
        raise ModelError(
            f"{model_name}: {model_config.num_heads} attention heads cannot share "
            f"{model_config.num_kv_heads} KV heads evenly"
        )
    if model_config.head_dim % 2 or model_config.head_dim < 2:
        raise ModelError(
            f"{model_name}: head_dim is {model_config.head_dim}; rotary embedding needs it even"
        )
