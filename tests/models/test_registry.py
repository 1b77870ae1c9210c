import pytest

from nanobatch.config import RopeConfig
from nanobatch.errors import ModelError
from nanobatch.models.registry import ARCHITECTURES, parse_model_config

LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


def parse(**changes: object):  # type: ignore[no-untyped-def]
    return parse_model_config({**LLAMA, **changes}, model_name="m")


def refusal(**changes: object) -> ModelError:
    with pytest.raises(ModelError) as caught:
        parse(**changes)
    return caught.value


def test_silent_fields_mean_what_transformers_assumes() -> None:
    model_config = parse()
    assert model_config.head_dim == 16
    assert model_config.max_position_embeddings == 2048
    assert model_config.rope == RopeConfig(theta=10_000.0)
    assert model_config.rms_norm_eps == 1e-6
    assert not model_config.tie_word_embeddings
    assert model_config.sliding_windows == (None, None, None)
    assert model_config.dtype == "float32"


def test_null_kv_heads_and_head_dim_follow_from_the_rest() -> None:
    model_config = parse(num_key_value_heads=None, head_dim=None)
    assert (model_config.num_kv_heads, model_config.head_dim) == (4, 16)


def test_families_differ_in_their_flags() -> None:
    def flags(architecture: str, **changes: object) -> tuple[bool, bool, bool, bool]:
        parsed = parse(architectures=[architecture], **changes)
        return parsed.has_qk_norm, parsed.has_qkv_bias, parsed.has_o_bias, parsed.has_mlp_bias

    biases = {"attention_bias": True, "mlp_bias": True}
    assert flags("LlamaForCausalLM") == (False, False, False, False)
    assert flags("LlamaForCausalLM", **biases) == (False, True, True, True)
    assert flags("MistralForCausalLM", **biases) == (False, False, False, False)
    assert flags("Qwen2ForCausalLM") == (False, True, False, False)
    assert flags("Qwen3ForCausalLM") == (True, False, False, False)
    assert flags("Qwen3ForCausalLM", **biases) == (True, True, True, False)


def test_qwen3_has_a_head_dim_of_128_unless_it_says_otherwise() -> None:
    assert parse(architectures=["Qwen3ForCausalLM"]).head_dim == 128
    assert parse(architectures=["Qwen3ForCausalLM"], head_dim=32).head_dim == 32


def test_unknown_architectures_are_refused_with_the_list() -> None:
    error = refusal(architectures=["Gemma2ForCausalLM"])
    assert error.message == "m: architecture Gemma2ForCausalLM is not supported"
    assert error.hint == (
        "supported: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
    )
    assert list(ARCHITECTURES) == error.hint.removeprefix("supported: ").split(", ")


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [3]])
def test_a_config_without_architecture_is_refused(architectures: object) -> None:
    assert refusal(architectures=architectures).message == "m: config.json names no architecture"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "m: hidden_act 'gelu' is not supported; supported: silu"),
        (
            {"quantization_config": {"quant_method": "awq", "bits": 4}},
            "m: quantized weights (quantization_config: awq) are not supported",
        ),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "m: rotary embedding of type 'dynamic' is not supported",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
            "m: rotary embedding of type 'longrope' is not supported",
        ),
        (
            {"partial_rotary_factor": 0.5},
            "m: partial_rotary_factor 0.5 is not supported; supported: 1",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}},
            "m: partial_rotary_factor 0.25 is not supported; supported: 1",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "m: rope_parameters that differ by layer type are not supported",
        ),
        ({"rope_scaling": {"type": "linear"}}, "m: config.json has no factor"),
        ({"rope_theta": "big"}, "m: rope_theta is 'big'; it must be a number"),
        ({"rope_scaling": [2.0]}, "m: rope_scaling is [2.0]; it must be a table"),
        ({"hidden_size": None}, "m: config.json has no hidden_size"),
        ({"hidden_size": "64"}, "m: hidden_size is '64'; it must be a whole number"),
        ({"hidden_size": True}, "m: hidden_size is True; it must be a whole number"),
        ({"vocab_size": 0}, "m: vocab_size is 0; it must be at least 1"),
        ({"tie_word_embeddings": 1}, "m: tie_word_embeddings is 1; it must be true or false"),
        (
            {"num_key_value_heads": 3},
            "m: 4 attention heads cannot share 3 KV heads evenly",
        ),
        ({"head_dim": 7}, "m: head_dim is 7; rotary embedding needs it even"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    changes: dict[str, object], message: str
) -> None:
    assert refusal(**changes).message == message


def test_rotary_settings_of_transformers_4_and_5_mean_the_same() -> None:
    expected = RopeConfig(
        theta=500_000.0,
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=512,
    )
    old = parse(rope_theta=500_000.0, rope_scaling=LLAMA3_SCALING)
    new = parse(rope_parameters={"rope_theta": 500_000.0, **LLAMA3_SCALING})
    assert old.rope == new.rope == expected
    assert parse(rope_theta=5e5, rope_scaling=None).rope == RopeConfig(theta=5e5)
    assert parse(rope_scaling={"type": "linear", "factor": 2}).rope == RopeConfig(
        rope_type="linear", factor=2.0
    )


def test_yarn_fills_in_what_is_not_given() -> None:
    scaling = {"type": "yarn", "original_max_position_embeddings": 512}
    rope = parse(rope_scaling=scaling, max_position_embeddings=2048).rope
    assert rope == RopeConfig(rope_type="yarn", factor=4.0, original_max_position_embeddings=512)


def test_mistral_slides_in_every_layer_unless_the_window_is_null() -> None:
    mistral = {"architectures": ["MistralForCausalLM"]}
    assert parse(**mistral, sliding_window=64).sliding_windows == (64, 64, 64)
    assert parse(**mistral, sliding_window=None).sliding_windows == (None, None, None)
    assert parse(**mistral).sliding_windows == (4096, 4096, 4096)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_slides_where_it_says(architecture: str) -> None:
    def windows(**changes: object) -> tuple[int | None, ...]:
        parsed: tuple[int | None, ...] = parse(
            architectures=[architecture], sliding_window=64, **changes
        ).sliding_windows
        return parsed

    assert windows() == (None, None, None)
    assert windows(use_sliding_window=True) == (None, None, None)  # from layer 28 on
    assert windows(use_sliding_window=True, max_window_layers=1) == (None, 64, 64)
    types = ["sliding_attention", "full_attention", "full_attention"]
    assert windows(use_sliding_window=True, layer_types=types) == (64, None, None)
    error = refusal(architectures=[architecture], sliding_window=64, layer_types=types)
    assert error.message == (
        "m: layer_types has sliding_attention, but no sliding_window is in use"
    )
    error = refusal(architectures=[architecture], layer_types=["full_attention"])
    assert error.message == "m: layer_types must name the attention of all 3 layers"
    error = refusal(architectures=[architecture], layer_types=["mamba"] * 3)
    assert error.message == "m: layer type 'mamba' is not supported"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"torch_dtype": "auto"}, "float32"),
    ],
)
def test_the_checkpoints_dtype_is_read_under_both_names(
    fields: dict[str, object], expected: str
) -> None:
    assert parse(**fields).dtype == expected
