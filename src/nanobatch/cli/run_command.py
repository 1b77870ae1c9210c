"""`nanobatch run`: options to a `JobConfig`, then the job."""

import os

import typer

from nanobatch.cli import (
    build_config,
    engine_options,
    option_values,
    options,
    run_options,
    sampling_options,
)
from nanobatch.cli.duration import parse_duration
from nanobatch.cli.settings import announce_settings
from nanobatch.cli.shard_option import parse_shard, require_shardable, shard_output
from nanobatch.cli.standard_streams import is_stdout_missing
from nanobatch.errors import OutputError
from nanobatch.job_config import JobConfig


def run(
    context: typer.Context,
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
    limit: run_options.LimitOption = None,
    shard: run_options.ShardOption = None,
    columns: run_options.ColumnsOption = "all",
    token_ids: run_options.TokenIdsOption = False,
    logprobs: run_options.LogprobsOption = False,
    output_shape: run_options.OutputShapeOption = None,
    rows_per_part: run_options.RowsPerPartOption = None,
    max_errors: run_options.MaxErrorsOption = "0",
    keep_journal: run_options.KeepJournalOption = False,
    overwrite: run_options.OverwriteOption = False,
    restart: run_options.RestartOption = False,
    retry_errors: run_options.RetryErrorsOption = False,
    repair_journal: run_options.RepairJournalOption = False,
    max_tokens: sampling_options.MaxTokensOption = None,
    temperature: sampling_options.TemperatureOption = None,
    top_p: sampling_options.TopPOption = None,
    top_k: sampling_options.TopKOption = None,
    min_p: sampling_options.MinPOption = None,
    seed: sampling_options.SeedOption = 0,
    stop: sampling_options.StopOption = None,
    n: sampling_options.SamplesOption = None,
    chat_template: options.ChatTemplateOption = None,
    chat_template_kwargs: options.ChatTemplateKwargsOption = None,
    trust_remote_code: options.TrustRemoteCodeOption = False,
    max_model_len: options.MaxModelLenOption = None,
    long_prompts: engine_options.LongPromptsOption = "error",
    row_timeout: engine_options.RowTimeoutOption = None,
    device: engine_options.DeviceOption = "auto",
    dtype: engine_options.DtypeOption = "auto",
    max_num_seqs: engine_options.MaxNumSeqsOption = None,
    max_num_batched_tokens: engine_options.MaxNumBatchedTokensOption = None,
    block_size: engine_options.BlockSizeOption = 16,
    kv_cache_memory: engine_options.KvCacheMemoryOption = None,
    gpu_memory_utilization: engine_options.GpuMemoryUtilizationOption = 0.92,
    prefix_caching: engine_options.PrefixCachingOption = True,
    shared_attention: engine_options.SharedAttentionOption = True,
    enforce_eager: engine_options.EnforceEagerOption = False,
    attention_backend: engine_options.AttentionBackendOption = "auto",
    window_rows: engine_options.WindowRowsOption = 1 << 15,
    window_tokens: engine_options.WindowTokensOption = 16 << 20,
    stop_after: run_options.StopAfterOption = None,
    stop_after_errors: run_options.StopAfterErrorsOption = None,
    _config: options.ConfigOption = None,
    progress: run_options.ProgressOption = True,
    log_interval: run_options.LogIntervalOption = "30s",
    debug: options.DebugOption = False,
) -> int:
    """Generate an answer for every row; run the same line again to continue a stopped run."""
    from nanobatch.cli.run_job import run_with_progress

    announce_settings(context)
    part = parse_shard(shard, os.environ)
    require_shardable(part, inputs, output)
    config = JobConfig(
        inputs=tuple(inputs),
        output=shard_output(output, part),
        input_format=option_values.parse_input_format(input_format),
        delimiter=option_values.parse_delimiter(delimiter),
        rows=option_values.parse_row_config(
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
        engine=build_config.build_engine_config(
            model=model,
            device=device,
            dtype=dtype,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            kv_cache_memory=kv_cache_memory,
            gpu_memory_utilization=gpu_memory_utilization,
            prefix_caching=prefix_caching,
            shared_attention=shared_attention,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
            seed=seed,
            logprobs=logprobs,
            enforce_eager=enforce_eager,
            attention_backend=attention_backend,
            trust_remote_code=trust_remote_code,
            long_prompts=long_prompts,
            row_timeout=row_timeout,
        ),
        sampling=build_config.build_sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            stop=stop,
            n=n,
        ),
        columns=option_values.parse_columns(columns),
        include_token_ids=token_ids,
        max_errors=option_values.parse_max_errors(max_errors),
        keep_journal=keep_journal,
        window_rows=window_rows,
        window_tokens=build_config.require_at_least_one("--window-tokens", window_tokens),
        show_progress=progress,
        log_interval_s=parse_duration("--log-interval", log_interval),
        limit=limit,
        shard=part,
        output_shape=build_config.parse_output_shape(output_shape),
        rows_per_part=build_config.parse_rows_per_part(rows_per_part, output),
        start_over=build_config.build_start_over(
            output=output,
            overwrite=overwrite,
            restart=restart,
            retry_errors=retry_errors,
            repair_journal=repair_journal,
        ),
        stop_after_s=build_config.parse_optional_duration("--stop-after", stop_after),
        stop_after_errors=stop_after_errors,
    )
    if config.writes_to_stdout and is_stdout_missing():
        raise OutputError("standard output is closed", hint="name a file as the output")
    return run_with_progress(config, debug=debug)
