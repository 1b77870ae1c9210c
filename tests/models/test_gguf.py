import importlib.util
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from nanobatch.config import RopeConfig
from nanobatch.errors import ModelError
from nanobatch.models.gguf_file import GgufArray, GgufFile
from nanobatch.models.source import read_generation_defaults, read_model_config, resolve_model
from tests.checkpoints import build_reference
from tests.models.gguf_files import write_gguf
from tests.models.steps import PagedSequences, load, random_prompts
from tests.tiny_tokenizer import VOCAB_SIZE

PROMPTS = random_prompts((45, 6), vocab_size=VOCAB_SIZE)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write(
    tmp_path: Path, family: str = "llama", *, architecture: str = "llama", **more: Any
) -> Path:
    overrides = more.pop("overrides", {})
    model = build_reference(family, **overrides)
    return write_gguf(tmp_path / "model.gguf", model, architecture=architecture, **more)


def logits_error(path: Path, family: str, **overrides: Any) -> float:
    model = build_reference(family, **overrides)
    actual = PagedSequences(load(path), PROMPTS).run(16)
    with torch.no_grad():
        expected = [model(torch.tensor([ids])).logits[0] for ids in PROMPTS]
    pairs = zip(actual, expected, strict=True)
    return max(float((ours - theirs).abs().max() / theirs.abs().max()) for ours, theirs in pairs)


def refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read_model_config(resolve_model(str(path)))
    return caught.value


@pytest.mark.parametrize(
    ("family", "architecture"),
    [("llama", "llama"), ("llama_bias", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")],
)
def test_an_unquantized_file_gives_the_logits_of_its_checkpoint(
    family: str, architecture: str, tmp_path: Path
) -> None:
    overrides: dict[str, Any] = {"mlp_bias": False} if family == "llama_bias" else {}
    path = write(tmp_path, family, architecture=architecture, overrides=overrides)
    assert logits_error(path, family, **overrides) <= 1e-5


@pytest.mark.parametrize("quantization", ["Q8_0", "F16", "BF16"])
def test_a_quantized_file_gives_nearly_the_logits_of_its_checkpoint(
    quantization: str, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
    path = write(tmp_path, overrides=sizes, quantization=quantization)
    assert 1e-5 < logits_error(path, "llama", **sizes) < 0.2


@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_1", "Q4_0", "F16", "BF16", "F32"])
def test_tensors_are_dequantized_as_the_gguf_package_does(
    quantization: str, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
    path = write(tmp_path, overrides=sizes, quantization=quantization)
    ours = GgufFile.open(path)
    theirs = gguf.GGUFReader(path)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert ours.tensors[tensor.name].offset_bytes == tensor.data_offset
        assert np.array_equal(ours.read(tensor.name), expected)


def test_metadata_is_read_as_the_gguf_package_does(tmp_path: Path) -> None:
    path = write(tmp_path, metadata={"a.bool": True, "a.text": "é", "a.float": 0.1})
    ours = GgufFile.open(path).metadata
    for key, field in gguf.GGUFReader(path).fields.items():
        if key.startswith("GGUF."):
            continue
        expected = field.contents()
        if isinstance(expected, list):
            expected = GgufArray(length=len(expected))
        assert ours[key] == expected, key


def test_rotary_divisors_are_recognised_as_llama_3s(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"head_dim": 64, "rope_parameters": LLAMA3}
    rotary = build_reference("llama", **sizes).model.rotary_emb
    plain = 500_000.0 ** -(torch.arange(0, 64, 2).double() / 64)
    divisors = (plain / rotary.inv_freq.double()).float().numpy()
    path = write(tmp_path, overrides=sizes, extra_tensors={"rope_freqs.weight": divisors})
    rope = read_model_config(resolve_model(str(path))).rope
    assert rope == RopeConfig(
        theta=500_000.0,
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    assert logits_error(path, "llama", **sizes) <= 1e-5


def test_other_rotary_divisors_are_refused(tmp_path: Path) -> None:
    divisors = np.linspace(1.0, 8.0, 8, dtype=np.float32)
    path = write(tmp_path, extra_tensors={"rope_freqs.weight": divisors})
    message = "model.gguf: the rotary scaling in rope_freqs.weight is not Llama 3's"
    assert refusal(path).message == message


def test_rotary_scaling_in_the_metadata_is_read(tmp_path: Path) -> None:
    def rope(**scaling: int | float | str) -> RopeConfig:
        metadata = {f"llama.rope.{key.replace('__', '.')}": value for key, value in scaling.items()}
        return read_model_config(resolve_model(str(write(tmp_path, metadata=metadata)))).rope

    assert rope(scaling__type="none") == RopeConfig()
    assert rope(scale_linear=2.0) == RopeConfig(rope_type="linear", factor=2.0)
    assert rope(scaling__type="linear", scaling__factor=4.0) == RopeConfig(
        rope_type="linear", factor=4.0
    )
    yarn = {"scaling__factor": 4.0, "scaling__original_context_length": 128}
    assert rope(scaling__type="yarn", **yarn) == RopeConfig(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=128
    )


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, "mixtures of experts (8 experts) are not supported"),
        (
            {"llama.rope.dimension_count": 8},
            "rotary embedding of 8 of 16 dimensions is not supported",
        ),
        (
            {"llama.attention.value_length": 8},
            "values of another size than keys are not supported",
        ),
        (
            {"llama.attention.head_count": 0},
            "num_attention_heads is 0; it must be at least 1",
        ),
        (
            {"llama.rope.scaling.type": "longrope"},
            "rotary embedding of type 'longrope' is not supported",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    metadata: dict[str, int | str], message: str, tmp_path: Path
) -> None:
    assert refusal(write(tmp_path, metadata=metadata)).message.endswith(f": {message}")


def test_other_architectures_are_refused_with_the_list(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, architecture="gemma2"))
    assert error.message == "model.gguf: GGUF architecture gemma2 is not supported"
    assert error.hint == "supported: llama, qwen2, qwen3"


def test_tensors_are_checked_by_their_hugging_face_names(tmp_path: Path) -> None:
    path = write(tmp_path, extra_tensors={"blk.0.ffn_gate_shexp.weight": np.ones((2, 2), "f4")})
    with pytest.raises(ModelError) as caught:
        load(path)
    assert "blk.0.ffn_gate_shexp.weight is in the checkpoint that" in caught.value.message


def test_end_of_turn_ends_a_sequence_too(tmp_path: Path) -> None:
    ids = {"tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.eot_token_id": 5}
    source = resolve_model(str(write(tmp_path, metadata=ids)))
    assert read_generation_defaults(source).eos_token_ids == (3, 5)


def test_unquantized_files_say_their_dtype(tmp_path: Path) -> None:
    def dtype(file_type: int) -> str:
        path = write(tmp_path, metadata={"general.file_type": file_type})
        return read_model_config(resolve_model(str(path))).dtype

    assert [dtype(file_type) for file_type in (0, 1, 32, 7)] == [
        "float32",
        "float16",
        "bfloat16",
        "float16",
    ]


@pytest.mark.parametrize("keep", [0, 3, 20, 200, 900])
def test_a_file_that_ends_in_its_header_is_refused(keep: int, tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    assert refusal(path).message.startswith(f"{path} is not a readable GGUF file: ")


def test_a_file_that_ends_in_its_weights_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelError) as caught:
        load(path)
    assert caught.value.message.startswith("model.gguf: cannot read tensor ")


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_header_is_an_error_or_harmless_never_a_crash(seed: int, tmp_path: Path) -> None:
    path = write(tmp_path)
    content = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    for position in rng.integers(0, 2500, 8):
        content[position] = rng.integers(0, 256)
    path.write_bytes(content)
    try:
        load(path)
    except ModelError as error:
        assert "\n" not in error.message


def test_without_the_gguf_package_the_hint_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "gguf" else find_spec(name)
    )
    error = refusal(path)
    assert error.message == "model.gguf: reading .gguf files needs the gguf package"
    assert error.hint == "pip install 'nanobatch[gguf]'"
