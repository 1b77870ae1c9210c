"""Weights drawn on the device they are used on, for measuring speed without a checkpoint.

The same sizes, device and data type give the same weights. They are drawn tensor by tensor in fp32,
so that memory holds the model and one tensor; written to disk for engines that read checkpoints.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from nanobatch.config import GIB, ModelConfig
from nanobatch.kernels.kernel_set import KernelSet
from nanobatch.models.checkpoint import INDEX_FILE, SINGLE_FILE
from nanobatch.models.decoder import DecoderModel
from nanobatch.models.loader import load_model
from nanobatch.models.random_model import INITIALIZER_STD
from nanobatch.models.source import ModelSource

SEED = 0
MAX_FILE_BYTES = 4 * GIB


class RandomCheckpoint:
    """A `Checkpoint` that is drawn when it is read: norms one, all else normal around zero.

    Args:
        model_config: What the weights are for.
        dtype: Of the tensors.
        device: Where they are drawn; other devices draw other values.
    """

    def __init__(
        self, model_config: ModelConfig, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        outline = DecoderModel(model_config, dtype=dtype, device=torch.device("meta"))
        self._shapes = {name: slot.shape for name, slot in outline.weight_slots().items()}
        self._dtype, self._device = dtype, device

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return self._shapes

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Draw every tensor, on the device."""
        generator = torch.Generator(device=self._device).manual_seed(SEED)
        for name, shape in self._shapes.items():
            if "norm" in name:
                yield name, torch.ones(shape, dtype=self._dtype, device=self._device)
                continue
            drawn = torch.empty(shape, dtype=torch.float32, device=self._device)
            drawn.normal_(std=INITIALIZER_STD, generator=generator)
            yield name, drawn.to(self._dtype)


def load_random_model(
    source: ModelSource,
    model_config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kernels: KernelSet | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> DecoderModel:
    """Build a decoder with random weights; a replacement for `loader.load_model`."""
    return load_model(
        source,
        model_config,
        dtype=dtype,
        device=device,
        checkpoint=RandomCheckpoint(model_config, dtype=dtype, device=device),
        kernels=kernels,
        on_progress=on_progress,
    )


def save_random_weights(
    folder: Path, model_config: ModelConfig, *, dtype: torch.dtype, device: torch.device
) -> None:
    """Write the weights that `load_random_model` draws into a model's folder.

    Files of up to `MAX_FILE_BYTES` are written one after another, so that main memory holds one.
    """
    checkpoint = RandomCheckpoint(model_config, dtype=dtype, device=device)
    file_of_name: dict[str, str] = {}
    for number, tensors in enumerate(_portions(checkpoint)):
        file = f"model-{number:05}.safetensors"
        save_file(tensors, str(folder / file), metadata={"format": "pt"})
        file_of_name |= dict.fromkeys(tensors, file)
    files = set(file_of_name.values())
    if len(files) == 1:
        (folder / files.pop()).rename(folder / SINGLE_FILE)
    else:
        _write_index(folder, file_of_name)


def _portions(checkpoint: RandomCheckpoint) -> Iterator[dict[str, torch.Tensor]]:
    portion: dict[str, torch.Tensor] = {}
    num_bytes = 0
    for name, tensor in checkpoint.tensors():
        if portion and num_bytes + tensor.nbytes > MAX_FILE_BYTES:
            yield portion
            portion, num_bytes = {}, 0
        portion[name] = tensor.cpu()
        num_bytes += tensor.nbytes
    yield portion


def _write_index(folder: Path, file_of_name: Mapping[str, str]) -> None:
    num_bytes = sum((folder / file).stat().st_size for file in set(file_of_name.values()))
    index = {"metadata": {"total_size": num_bytes}, "weight_map": dict(file_of_name)}
    (folder / INDEX_FILE).write_text(json.dumps(index))
