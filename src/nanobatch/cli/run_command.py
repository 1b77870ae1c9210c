"""`nanobatch run`: flags to a `JobConfig`, then the job."""

import math
from typing import cast

from nanobatch.cli import options, run_options
from nanobatch.cli.standard_streams import is_stdout_missing
from nanobatch.config import MIB, Device, Dtype, EngineConfig
from nanobatch.errors import ConfigError, OutputError
from nanobatch.job_config import JobConfig


def run(
    inputs: options.Inputs,
    output: run_options.OutputOption,
    *,
    model: options.ModelOption = None,
    input_format: options.InputFormatOption = None,
    delimiter: options.DelimiterOption = ",",
    template: options.TemplateOption = None,
    prompt_column: options.PromptColumnOption = None,
    messages_column: options.MessagesColumnOption = None,
    id_column: options.IdColumnOption = None,
    param_columns: options.ParamColumnsOption = "",
    system: options.SystemOption = None,
    raw: options.RawOption = False,
    strict: options.StrictOption = False,
    allow_duplicate_ids: options.AllowDuplicateIdsOption = False,
    columns: run_options.ColumnsOption = "all",
    token_ids: run_options.TokenIdsOption = False,
    logprobs: run_options.LogprobsOption = False,
    max_errors: run_options.MaxErrorsOption = "0",
    keep_journal: run_options.KeepJournalOption = False,
    max_tokens: run_options.MaxTokensOption = None,
    temperature: run_options.TemperatureOption = None,
    top_p: run_options.TopPOption = None,
    top_k: run_options.TopKOption = None,
    min_p: run_options.MinPOption = None,
    seed: run_options.SeedOption = 0,
    stop: run_options.StopOption = None,
    chat_template: options.ChatTemplateOption = None,
    chat_template_kwargs: options.ChatTemplateKwargsOption = None,
    trust_remote_code: options.TrustRemoteCodeOption = False,
    max_model_len: options.MaxModelLenOption = None,
    device: run_options.DeviceOption = "auto",
    dtype: run_options.DtypeOption = "auto",
    max_num_seqs: run_options.MaxNumSeqsOption = 256,
    max_num_batched_tokens: run_options.MaxNumBatchedTokensOption = 8192,
    block_size: run_options.BlockSizeOption = 16,
    kv_cache_memory: run_options.KvCacheMemoryOption = None,
    gpu_memory_utilization: run_options.GpuMemoryUtilizationOption = 0.92,
    prefix_caching: run_options.PrefixCachingOption = True,
    window_rows: run_options.WindowRowsOption = 4096,
    progress: run_options.ProgressOption = True,
    log_interval: run_options.LogIntervalOption = 30.0,
    debug: options.DebugOption = False,
) -> int:
    """Generate an answer for every row; run the same line again to continue a stopped run."""
    from nanobatch.cli.run_job import run_with_progress

    sampling = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "stop": stop or None,
    }
    config = JobConfig(
        inputs=tuple(inputs),
        output=output,
        input_format=options.parse_input_format(input_format),
        delimiter=delimiter,
        rows=options.parse_row_config(
            template=template,
            prompt_column=prompt_column,
            messages_column=messages_column,
            id_column=id_column,
            param_columns=param_columns,
            system=system,
            raw=raw,
            strict=strict,
            allow_duplicate_ids=allow_duplicate_ids,
        ),
        engine=EngineConfig(
            model=model,
            device=cast(Device, _one_of("--device", device, ("auto", "cpu", "cuda"))),
            dtype=cast(Dtype, _one_of("--dtype", dtype, _DTYPES)),
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            kv_cache_memory_bytes=None if kv_cache_memory is None else kv_cache_memory * MIB,
            gpu_memory_utilization=gpu_memory_utilization,
            enable_prefix_caching=prefix_caching,
            chat_template=options.parse_chat_template(chat_template),
            chat_template_kwargs=options.parse_chat_template_kwargs(chat_template_kwargs),
            seed=seed,
            return_logprobs=logprobs,
            trust_remote_code=trust_remote_code,
        ),
        sampling={name: value for name, value in sampling.items() if value is not None},
        columns=_columns(columns),
        include_token_ids=token_ids,
        max_errors=_max_errors(max_errors),
        keep_journal=keep_journal,
        window_rows=window_rows,
        show_progress=progress,
        log_interval_s=_log_interval(log_interval),
    )
    if config.writes_to_stdout and is_stdout_missing():
        raise OutputError("standard output is closed", hint="name a file as the output")
    return run_with_progress(config, debug=debug)


_DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")


def _one_of(flag: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"{flag} is {value!r}", hint=f"use one of {', '.join(allowed)}")
    return value


def _columns(text: str) -> tuple[str, ...] | None:
    if text == "all":
        return None
    return () if text == "none" else options.split_names(text)


def _log_interval(seconds: float) -> float:
    if not 0.0 < seconds < math.inf:
        raise ConfigError(f"--log-interval is {seconds:g}; it must be above 0 seconds")
    return seconds


def _max_errors(text: str) -> int | None:
    if text == "any":
        return None
    if not text.isdecimal():
        raise ConfigError(f"--max-errors is {text!r}", hint="give a number or `any`")
    return int(text)
