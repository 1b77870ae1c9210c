"""What sampling applies to rows that say nothing: flag > generation_config.json > default."""

from collections.abc import Mapping
from typing import Any

from nanobatch.errors import ConfigError
from nanobatch.models.source import GenerationDefaults
from nanobatch.request import SamplingParams

_MODEL_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def default_sampling(flags: Mapping[str, object], model: GenerationDefaults) -> SamplingParams:
    """Return the parameters of a row that gives none.

    Raises:
        ConfigError: A flag is out of bounds.
    """
    values: dict[str, Any] = {
        name: getattr(model, name) for name in _MODEL_DEFAULTS if getattr(model, name) is not None
    }
    if values.get("top_k") == 0:
        del values["top_k"]
    values.update(flags)
    if values.get("top_k") in (0, -1):
        values["top_k"] = None
    if "stop" in values:
        values["stop"] = tuple(values["stop"])
    try:
        return SamplingParams(**values)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def describe_sampling(params: SamplingParams, *, run_seed: int) -> str:
    """Return one line that says which sampling applies."""
    limit = params.max_tokens if params.max_tokens is not None else "room left, at most 4,096"
    parts = [f"max_tokens {limit}", f"temperature {params.temperature:g}"]
    if params.n > 1:
        parts.append(f"n {params.n}")
    if not params.is_greedy:
        parts.append(f"seed {run_seed}")
    for name, neutral in (("top_p", 1.0), ("top_k", None), ("min_p", 0.0)):
        value = getattr(params, name)
        if value != neutral:
            parts.append(f"{name} {value:g}")
    if params.repetition_penalty != 1.0:
        parts.append(f"repetition_penalty {params.repetition_penalty:g}")
    if params.stop:
        parts.append(f"stop {list(params.stop)}")
    return ", ".join(parts)
