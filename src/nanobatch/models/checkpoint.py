"""The weights of a model as named tensors, whatever they are stored in.

A `Checkpoint` tells names and shapes from file headers alone and reads one tensor at a time.
Knows safetensors files (one, or many with an index) and GGUF; knows no layer.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from nanobatch.errors import ModelError
from nanobatch.models.gguf_model import GgufModel
from nanobatch.models.source import ModelSource

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


class Checkpoint(Protocol):
    """Tensors by their Hugging Face names."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor, known without reading weights."""
        ...

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Read every tensor in the order in which they are stored."""
        ...


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """Open a model's weights.

    Raises:
        ModelError: There are none, a file is missing, or a file is damaged.
    """
    if source.kind == "gguf":
        model = GgufModel.open(source.path)
        return GgufCheckpoint(model=model, shapes=model.tensor_shapes())
    return _open_safetensors(source)


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsCheckpoint:
    """Tensors in safetensors files.

    Attributes:
        names_by_file: Which tensors each file holds.
        shapes: Shape of every tensor.
    """

    names_by_file: Mapping[Path, tuple[str, ...]]
    shapes: Mapping[str, tuple[int, ...]]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Read file by file, tensor by tensor.

        Raises:
            ModelError: A file is damaged.
        """
        for path, names in self.names_by_file.items():
            try:
                with safe_open(path, framework="pt") as file:
                    for name in names:
                        yield name, file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise _damaged(path, error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufCheckpoint:
    """Tensors in a GGUF file, dequantised to fp32 as they are read."""

    model: GgufModel
    shapes: Mapping[str, tuple[int, ...]]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Read tensor by tensor.

        Raises:
            ModelError: The file is damaged.
        """
        for name in self.shapes:
            yield name, torch.from_numpy(self.model.read(name))


def _open_safetensors(source: ModelSource) -> SafetensorsCheckpoint:
    names_by_file: dict[Path, tuple[str, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path, wanted in _weight_files(source).items():
        shapes_in_file = _read_shapes(path)
        names = tuple(shapes_in_file) if wanted is None else wanted
        missing = [name for name in names if name not in shapes_in_file]
        if missing:
            raise ModelError(
                f"{source.name}: {path.name} does not hold tensor {missing[0]}, which "
                f"{INDEX_FILE} says it does"
            )
        names_by_file[path] = names
        shapes |= {name: shapes_in_file[name] for name in names}
    return SafetensorsCheckpoint(names_by_file=names_by_file, shapes=shapes)


def _weight_files(source: ModelSource) -> dict[Path, tuple[str, ...] | None]:
    """Return the files to read and, where an index says so, which tensors of each."""
    if (source.path / INDEX_FILE).is_file():
        return _indexed_files(source)
    single = source.path / SINGLE_FILE
    if single.is_file():
        return {single: None}
    others = sorted(source.path.glob("*.safetensors"))
    if len(others) == 1:
        return {others[0]: None}
    if others:
        raise ModelError(
            f"{source.name}: {len(others)} .safetensors files, but no {INDEX_FILE} "
            f"and no {SINGLE_FILE}"
        )
    pickled = any(source.path.glob("*.bin")) or any(source.path.glob("*.pt*"))
    raise ModelError(
        f"{source.name}: the model folder holds no .safetensors file",
        hint="pickled weights (.bin, .pt) are not read: save the model as safetensors"
        if pickled
        else "download the model's .safetensors files into it",
    )


def _indexed_files(source: ModelSource) -> dict[Path, tuple[str, ...] | None]:
    try:
        index = json.loads((source.path / INDEX_FILE).read_text(encoding="utf-8"))
        file_of_name = {str(name): str(file) for name, file in index["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{source.name}: cannot read {INDEX_FILE}: {error!r}") from error
    files: dict[Path, tuple[str, ...] | None] = {}
    for file in sorted(set(file_of_name.values())):
        path = source.path / file
        if Path(file).name != file or not path.is_file():
            raise ModelError(
                f"{source.name}: weight file {file} is missing",
                hint="download it again; the index names it",
            )
        files[path] = tuple(name for name, holder in file_of_name.items() if holder == file)
    return files


def _read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} is damaged: {error}", hint="download the file again")
