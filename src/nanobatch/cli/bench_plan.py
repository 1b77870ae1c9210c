"""Options of `nanobatch bench` to workloads, engines and settings, refusing what cannot be run."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from nanobatch.bench.engine_settings import ENGINE_NAMES, EngineName
from nanobatch.bench.workloads import (
    WORKLOADS,
    CustomShape,
    LengthRange,
    Workload,
    custom_workload,
    named_workload,
)
from nanobatch.cli.option_values import one_of, split_names
from nanobatch.config import MIB, EngineConfig, ModelConfig
from nanobatch.errors import ConfigError, UsageError
from nanobatch.job_config import RowConfig
from nanobatch.models.random_model import RANDOM_MODEL_SIZES, write_random_model
from nanobatch.models.source import ModelSource, resolve_model

DEFAULT_MAX_MODEL_LEN = 4096
"""Longest prompt plus output that engines are started for, where workloads need no more."""


def parse_engines(texts: Sequence[str]) -> tuple[EngineName, ...]:
    """Return the engines that `--engine` names, once each.

    Raises:
        ConfigError: There is no such engine.
    """
    names = tuple(dict.fromkeys(name for text in texts for name in split_names(text)))
    for name in names:
        if name not in ENGINE_NAMES:
            closest = get_close_matches(name, ENGINE_NAMES, n=1)
            raise ConfigError(
                f"--engine {name}: no such engine",
                hint=f"did you mean {closest[0]}?"
                if closest
                else f"engines are {', '.join(ENGINE_NAMES)}",
            )
    if not names:
        raise ConfigError("--engine names none", hint=f"engines are {', '.join(ENGINE_NAMES)}")
    return cast(tuple[EngineName, ...], names)


def parse_vllm_options(texts: Sequence[str]) -> dict[str, object]:
    """Return the arguments that `--vllm-arg` gives, as JSON where they are.

    Raises:
        ConfigError: A text has no value.
    """
    options: dict[str, object] = {}
    for text in texts:
        name, is_there, value = text.partition("=")
        if not is_there or not name:
            raise ConfigError(
                f"--vllm-arg is {text!r}", hint="example: --vllm-arg max_num_seqs=1024"
            )
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def custom_shape(
    *,
    input_len: str | None,
    output_len: str | None,
    num_prompts: int | None,
    prefix_len: int | None,
    num_prefixes: int | None,
    seed: int,
) -> CustomShape | None:
    """Return the shape of a workload of one's own, or None where no option asks for one.

    Raises:
        ConfigError: A length or count is wrong.
    """
    fields = {
        "input_lens": None if input_len is None else LengthRange.parse("--input-len", input_len),
        "output_lens": None
        if output_len is None
        else LengthRange.parse("--output-len", output_len),
        "num_prompts": num_prompts,
        "prefix_len": prefix_len,
        "num_prefixes": num_prefixes,
    }
    given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    return CustomShape(seed=seed, **given) if given else None


def make_workloads(
    text: str | None,
    shape: CustomShape | None,
    *,
    source: ModelSource,
    rows: RowConfig,
    max_tokens: int,
    limit: int | None,
) -> tuple[Workload, ...]:
    """Return what is to be generated.

    Args:
        text: Names of workloads and files of prompts, separated by commas; None names none.
        shape: Of a workload of one's own.
        source: The model, whose tokenizer reads files of prompts.
        rows: How the rows of files become prompts.
        max_tokens: Tokens to generate for rows that do not say.
        limit: Most rows of a file.

    Raises:
        UsageError: A workload does not exist or cannot be read, or none is named.
    """
    names = split_names(text or "")
    if shape is not None and names:
        raise ConfigError(
            f"{names[0]} has lengths of its own",
            hint="give a workload's name, or --input-len and the like, not both",
        )
    if shape is not None:
        return (custom_workload(shape),)
    if not names:
        raise UsageError(
            "no workload is named", hint=f"workloads are {', '.join(WORKLOADS)}, or a file"
        )
    workloads = []
    for name in dict.fromkeys(names):
        if _is_file(name):
            from nanobatch.bench.prompt_file import prompt_file_workload

            workloads.append(
                prompt_file_workload(name, source, rows=rows, max_tokens=max_tokens, limit=limit)
            )
        else:
            workloads.append(named_workload(name))
    _require_different_names(workloads)
    return tuple(workloads)


def fit_to_model(
    workloads: Sequence[Workload], model_config: ModelConfig, *, temperature: float | None
) -> tuple[Workload, ...]:
    """Return workloads with token ids that the model has, at the temperature that was asked for."""
    fitted = [workload.within_vocabulary(model_config.vocab_size) for workload in workloads]
    if temperature is None:
        return tuple(fitted)
    return tuple(replace(workload, temperature=temperature) for workload in fitted)


def choose_max_model_len(
    workloads: Sequence[Workload], model_config: ModelConfig, *, asked: int | None
) -> int:
    """Return the longest prompt plus output that engines are started for.

    Raises:
        ConfigError: A workload is longer than that or than the model's context.
    """
    context = model_config.max_position_embeddings
    longest = max(workloads, key=lambda workload: workload.max_sequence_len)
    room = min(context, asked or context)
    if longest.max_sequence_len > room:
        whose = "the model's context" if room == context else "--max-model-len"
        raise ConfigError(
            f"{longest.name} needs {longest.max_sequence_len:,} tokens; {whose} is {room:,}"
        )
    return asked or min(context, max(DEFAULT_MAX_MODEL_LEN, longest.max_sequence_len))


@contextmanager
def model_source(
    model: str | None, random_weights: str | None, save_checkpoint: str | None
) -> Iterator[ModelSource]:
    """Find the model, or write one without weights into a folder that lasts as long as this.

    Args:
        model: Folder, Hugging Face id or `.gguf` file; None takes the demo model.
        random_weights: Size of a model with random weights.
        save_checkpoint: Folder that is to keep it.

    Raises:
        UsageError: Options exclude each other, there is no such size or no such model.
    """
    if random_weights is None:
        if save_checkpoint is not None:
            raise ConfigError("--save-checkpoint is for --random-weights", hint="give both")
        yield resolve_model(model)
        return
    one_of("--random-weights", random_weights, tuple(RANDOM_MODEL_SIZES))
    if model is not None:
        raise ConfigError("--model and --random-weights exclude each other", hint="give one")
    if save_checkpoint is not None:
        folder = Path(save_checkpoint)
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"--save-checkpoint {folder} is not empty", hint="give a new folder")
        yield write_random_model(folder, random_weights)
        return
    with tempfile.TemporaryDirectory(prefix="nanobatch-random-") as temporary:
        yield write_random_model(Path(temporary), random_weights)


def given_engine_fields(
    *,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    kv_cache_memory_mib: int | None,
    gpu_memory_utilization: float | None,
    enable_prefix_caching: bool | None,
    enable_shared_attention: bool | None,
    enforce_eager: bool,
    attention_backend: str | None,
) -> Mapping[str, object]:
    """Return the fields of `EngineConfig` that were given.

    Raises:
        ConfigError: One of them is out of bounds.
    """
    fields = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "kv_cache_memory_bytes": None if kv_cache_memory_mib is None else kv_cache_memory_mib * MIB,
        "gpu_memory_utilization": gpu_memory_utilization,
        "enable_prefix_caching": enable_prefix_caching,
        "enable_shared_attention": enable_shared_attention,
        "enforce_eager": enforce_eager or None,
        "attention_backend": attention_backend,
    }
    given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    EngineConfig(**given)  # refuses what is out of bounds
    return given


def file_rows(
    template: str | None,
    prompt_column: str | None,
    messages_column: str | None,
    system: str | None,
    *,
    raw: bool,
) -> RowConfig:
    """Return how the rows of a file become prompts."""
    return RowConfig(
        template=template,
        prompt_column=prompt_column,
        messages_column=messages_column,
        system=system,
        raw=raw,
    )


def require_at_least(flag: str, value: int, bound: int) -> int:
    """Return the value of an option with a lower bound.

    Raises:
        ConfigError: It is below.
    """
    if value < bound:
        raise ConfigError(f"{flag} is {value}; it must be at least {bound}")
    return value


def _is_file(name: str) -> bool:
    return name not in WORKLOADS and ("." in name or "/" in name or Path(name).exists())


def _require_different_names(workloads: Sequence[Workload]) -> None:
    names = [workload.name for workload in workloads]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two workloads are called {name}", hint="rename a file")
