"""Random models: the sizes of Qwen3, and weights that are the same drawn and read from disk."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from nanobatch.models import random_weights
from nanobatch.models.decoder import DecoderModel
from nanobatch.models.loader import load_model
from nanobatch.models.random_model import RANDOM_MODEL_SIZES, write_random_model
from nanobatch.models.random_weights import load_random_model, save_random_weights
from nanobatch.models.source import ModelSource, read_model_config

CPU = torch.device("cpu")


def smoke_model(folder: Path) -> tuple[ModelSource, DecoderModel]:
    source = write_random_model(folder, "smoke")
    model = load_random_model(source, read_model_config(source), dtype=torch.float32, device=CPU)
    return source, model


def test_weights_are_small_and_normal_and_norms_are_one(tmp_path: Path) -> None:
    _, model = smoke_model(tmp_path)
    for name, weight in model.named_parameters():
        if "norm" in name:
            assert torch.equal(weight, torch.ones_like(weight))
        else:
            assert 0.018 < float(weight.std()) < 0.022
            assert abs(float(weight.mean())) < 0.001
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize("max_file_bytes", [1 << 30, 50_000])
def test_saved_weights_are_those_that_are_drawn(
    max_file_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_weights, "MAX_FILE_BYTES", max_file_bytes)
    source, drawn = smoke_model(tmp_path)
    model_config = read_model_config(source)
    save_random_weights(tmp_path, model_config, dtype=torch.float32, device=CPU)
    read = load_model(source, model_config, dtype=torch.float32, device=CPU)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert torch.equal(theirs.model.embed_tokens.weight, drawn.embedding.weight)
    for (name, weight), (_, again) in zip(
        drawn.named_parameters(), read.named_parameters(), strict=True
    ):
        assert torch.equal(weight, again), name


@pytest.mark.parametrize(
    ("size_name", "num_billions"), [("0.6b", 0.596), ("4b", 4.02), ("8b", 8.19), ("smoke", 1e-4)]
)
def test_sizes_are_those_of_qwen3(size_name: str, num_billions: float, tmp_path: Path) -> None:
    model_config = read_model_config(write_random_model(tmp_path, size_name))
    model = DecoderModel(model_config, dtype=torch.float32, device=torch.device("meta"))
    num_weights = sum(weight.numel() for weight in model.parameters())
    assert num_weights / 1e9 == pytest.approx(
        num_billions, rel=0.1 if num_billions < 1e-3 else 0.01
    )
    assert set(RANDOM_MODEL_SIZES) == {"0.6b", "4b", "8b", "smoke"}
