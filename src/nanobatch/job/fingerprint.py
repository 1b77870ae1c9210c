"""What makes two runs the same job: everything that can change the text of an answer.

A fingerprint is a flat mapping of names to values, so that a mismatch can name what differs.
Device, memory, batch limits, paths and logging never take part.
"""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from nanobatch.io.input_sample import sampled_hash, source_samples
from nanobatch.io.input_source import InputSource
from nanobatch.io.stdin_spool import digest
from nanobatch.job_config import JobConfig
from nanobatch.models.source import ModelSource

Fingerprint = Mapping[str, object]

# By name and not by suffix: people run jobs in a model's folder, whose files then lie there too.
_MODEL_FILES = (
    *("config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer*", "vocab*", "merges.txt", "chat_template*", "*.jinja", "*.model"),
    *("*.safetensors", "*.safetensors.index.json"),
)


def job_fingerprint(
    config: JobConfig, sources: Sequence[InputSource], model: ModelSource
) -> dict[str, object]:
    """Return the fingerprint of a job; every value is JSON.

    Inputs count by name, size and sampled blocks; the payload of each finished row is checked
    again when a resumed run skips it.
    """
    engine, rows = config.engine, config.rows
    fingerprint: dict[str, object] = {
        "inputs": source_samples(sources),
        "input_format": config.input_format,
        "delimiter": config.delimiter,
        "model": _model_fingerprint(model),
        "dtype": engine.dtype,
        "max_model_len": engine.max_model_len,
        "seed": engine.seed,
        "limit": config.limit,
        "long_prompts": engine.long_prompts,
        "row_timeout_s": engine.row_timeout_s,
        "chat_template": engine.chat_template,
        "chat_template_kwargs": dict(engine.chat_template_kwargs),
        "logprobs": engine.return_logprobs,
        "token_ids": config.include_token_ids,
    }
    for name in ("template", "prompt_column", "messages_column", "id_column", "system", "raw"):
        fingerprint[name] = getattr(rows, name)
    fingerprint["param_columns"] = list(rows.param_columns)
    fingerprint["strict"] = rows.strict
    fingerprint["allow_duplicate_ids"] = rows.allow_duplicate_ids
    for name in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "n"):
        fingerprint[f"sampling.{name}"] = config.sampling.get(name)
    # Through JSON once, so that a stored and a fresh fingerprint compare equal.
    loaded: dict[str, object] = json.loads(json.dumps(fingerprint, default=list))
    return loaded


def stdin_digest(sources: Sequence[InputSource], *, is_kept: bool = True) -> str | None:
    """Return a hash of all of standard input, or None where it is no input.

    Args:
        sources: The inputs of a job.
        is_kept: Read it through the file that remembers it.

    Raises:
        OSError: The pipe cannot be read.
    """
    spools = [source.spool for source in sources if source.spool is not None]
    if not spools:
        return None
    return digest(spools[0] if is_kept else spools[0].without_file())


def _model_fingerprint(model: ModelSource) -> dict[str, str]:
    """Return a hash per file that decides what a model answers, by file name."""
    if model.path.is_file():
        return {model.path.name: sampled_hash(model.path)}
    return {
        path.name: sampled_hash(path)
        for path in sorted(model.path.iterdir())
        if path.is_file() and any(fnmatchcase(path.name, name) for name in _MODEL_FILES)
    }
