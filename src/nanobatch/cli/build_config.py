"""Options of `nanobatch run` to the parts of a `JobConfig`, a topic at a time.

Refuses options that exclude each other; what a job can do is checked where it is planned.
"""

from typing import cast, get_args

from nanobatch.cli.duration import parse_duration
from nanobatch.cli.option_values import (
    one_of,
    parse_chat_template,
    parse_chat_template_kwargs,
    parse_long_prompts,
)
from nanobatch.config import MIB, AttentionBackendName, Device, Dtype, EngineConfig
from nanobatch.errors import ConfigError
from nanobatch.job_config import OutputShape, StartOver

DEFAULT_ROWS_PER_PART = 100_000


def build_sampling(
    *,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    min_p: float | None,
    stop: list[str] | None,
    n: int | None,
) -> dict[str, object]:
    """Return the sampling parameters that were given, by their OpenAI names."""
    given = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "stop": stop or None,
        "n": n,
    }
    return {name: value for name, value in given.items() if value is not None}


def build_engine_config(
    *,
    model: str | None,
    device: str,
    dtype: str,
    block_size: int,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    max_model_len: int | None,
    kv_cache_memory: int | None,
    gpu_memory_utilization: float,
    prefix_caching: bool,
    shared_attention: bool,
    chat_template: str | None,
    chat_template_kwargs: str | None,
    seed: int,
    logprobs: bool,
    enforce_eager: bool,
    attention_backend: str,
    trust_remote_code: bool,
    long_prompts: str,
    row_timeout: str | None,
) -> EngineConfig:
    """Return how to run the model.

    Raises:
        ConfigError: An option is not valid.
    """
    return EngineConfig(
        model=model,
        device=cast(Device, one_of("--device", device, get_args(Device))),
        dtype=cast(Dtype, one_of("--dtype", dtype, get_args(Dtype))),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        kv_cache_memory_bytes=None if kv_cache_memory is None else kv_cache_memory * MIB,
        gpu_memory_utilization=gpu_memory_utilization,
        enable_prefix_caching=prefix_caching,
        enable_shared_attention=shared_attention,
        chat_template=parse_chat_template(chat_template),
        chat_template_kwargs=parse_chat_template_kwargs(chat_template_kwargs),
        seed=seed,
        return_logprobs=logprobs,
        enforce_eager=enforce_eager,
        attention_backend=cast(
            AttentionBackendName,
            one_of("--attention-backend", attention_backend, get_args(AttentionBackendName)),
        ),
        trust_remote_code=trust_remote_code,
        long_prompts=parse_long_prompts(long_prompts),
        row_timeout_s=parse_optional_duration("--row-timeout", row_timeout),
    )


def build_start_over(
    *, output: str, overwrite: bool, restart: bool, retry_errors: bool, repair_journal: bool
) -> StartOver:
    """Return what to do about an output or a journal that is there already.

    Raises:
        ConfigError: The options exclude each other, or the output has no journal.
    """
    given = {
        "--overwrite": overwrite,
        "--restart": restart,
        "--retry-errors": retry_errors,
        "--repair-journal": repair_journal,
    }
    flags = [flag for flag, is_given in given.items() if is_given]
    if flags and output == "-":
        raise ConfigError(
            f"{flags[0]} and -o - exclude each other: standard output has no journal",
            hint="name an output file",
        )
    for keeping in ("--retry-errors", "--repair-journal"):
        if given[keeping] and restart:
            raise ConfigError(
                f"--restart and {keeping} exclude each other: one discards the journal, "
                "the other needs it",
                hint="give one",
            )
    if overwrite and retry_errors:
        raise ConfigError(
            "--overwrite and --retry-errors exclude each other: one begins anew, "
            "the other keeps the rows that are ok",
            hint="give one",
        )
    return StartOver(
        overwrite=overwrite,
        restart=restart,
        retry_errors=retry_errors,
        repair_journal=repair_journal,
    )


def parse_rows_per_part(num_rows: int | None, output: str) -> int:
    """Return how many rows each part file has.

    Raises:
        ConfigError: The output has no parts.
    """
    if num_rows is None:
        return DEFAULT_ROWS_PER_PART
    if not output.endswith("/"):
        raise ConfigError(
            f"--rows-per-part is for an output folder; the output is {output}",
            hint="end the output's name with / to write part files",
        )
    return num_rows


def parse_output_shape(text: str | None) -> OutputShape | None:
    """Return the shape named by `--output-shape`.

    Raises:
        ConfigError: It is not a shape of rows.
    """
    if text is None:
        return None
    return cast(OutputShape, one_of("--output-shape", text, get_args(OutputShape)))


def parse_optional_duration(flag: str, text: str | None) -> float | None:
    """Return a duration in seconds, or None.

    Raises:
        ConfigError: The text is no duration.
    """
    return None if text is None else parse_duration(flag, text)


def require_at_least_one(flag: str, value: int) -> int:
    """Return the value of an option that must be positive.

    Raises:
        ConfigError: It is not.
    """
    if value < 1:
        raise ConfigError(f"{flag} is {value}; it must be at least 1")
    return value
