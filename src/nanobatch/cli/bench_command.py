"""`nanobatch bench`: engines side by side on the same work, and how far each is from the limit.

Standard output gets one JSON line for each engine and workload; what is for people, progress and
tables, goes to standard error.
"""

from pathlib import Path
from typing import cast, get_args

from nanobatch.cli import bench_options, engine_options, options, sampling_options
from nanobatch.cli.option_values import one_of
from nanobatch.config import Device, Dtype


def bench(
    workloads: bench_options.WorkloadsArgument = None,
    *,
    engine: bench_options.EngineOption = ["nanobatch"],  # noqa: B006  (typer's way to a default)
    model: options.ModelOption = None,
    random_weights: bench_options.RandomWeightsOption = None,
    save_checkpoint: bench_options.SaveCheckpointOption = None,
    max_model_len: options.MaxModelLenOption = None,
    input_len: bench_options.InputLenOption = None,
    output_len: bench_options.OutputLenOption = None,
    num_prompts: bench_options.NumPromptsOption = None,
    prefix_len: bench_options.PrefixLenOption = None,
    num_prefixes: bench_options.NumPrefixesOption = None,
    max_tokens: bench_options.MaxTokensOption = 128,
    limit: bench_options.LimitOption = None,
    template: options.TemplateOption = None,
    prompt_column: options.PromptColumnOption = None,
    messages_column: options.MessagesColumnOption = None,
    system: options.SystemOption = None,
    raw: options.RawOption = False,
    warmup: bench_options.WarmupOption = 1,
    repeats: bench_options.RepeatsOption = 3,
    temperature: bench_options.TemperatureOption = None,
    seed: sampling_options.SeedOption = 0,
    hf_batch_size: bench_options.HfBatchSizeOption = 32,
    vllm_arg: bench_options.VllmArgOption = None,
    device: engine_options.DeviceOption = "auto",
    dtype: engine_options.DtypeOption = "auto",
    max_num_seqs: bench_options.MaxNumSeqsOption = None,
    max_num_batched_tokens: bench_options.MaxNumBatchedTokensOption = None,
    kv_cache_memory: engine_options.KvCacheMemoryOption = None,
    gpu_memory_utilization: bench_options.GpuMemoryUtilizationOption = None,
    prefix_caching: bench_options.PrefixCachingOption = None,
    shared_attention: bench_options.SharedAttentionOption = None,
    enforce_eager: bench_options.EnforceEagerOption = False,
    attention_backend: bench_options.AttentionBackendOption = None,
    json: bench_options.JsonOption = None,
    profile: bench_options.ProfileOption = None,
    profile_seconds: bench_options.ProfileSecondsOption = 2.0,
    plot: bench_options.PlotOption = None,
    debug: bench_options.DebugOption = False,
) -> int:
    """Measure engines on the same work; a JSON line for each on stdout, a table on stderr."""
    from nanobatch.bench.engine_settings import EngineSettings
    from nanobatch.bench.measure import MeasurePlan
    from nanobatch.bench.suite import SuitePlan, require_engines
    from nanobatch.cli import bench_plan
    from nanobatch.cli.bench_run import BenchOutputs, run_bench
    from nanobatch.cli.run_job import quieten_libraries
    from nanobatch.models.source import read_model_config

    quieten_libraries(debug=debug)
    engines = bench_plan.parse_engines(engine)
    require_engines(engines)
    outputs = BenchOutputs.of(json=json, plot=plot)
    shape = bench_plan.custom_shape(
        input_len=input_len,
        output_len=output_len,
        num_prompts=num_prompts,
        prefix_len=prefix_len,
        num_prefixes=num_prefixes,
        seed=seed,
    )
    engine_fields = bench_plan.given_engine_fields(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        kv_cache_memory_mib=kv_cache_memory,
        gpu_memory_utilization=gpu_memory_utilization,
        enable_prefix_caching=prefix_caching,
        enable_shared_attention=shared_attention,
        enforce_eager=enforce_eager,
        attention_backend=attention_backend,
    )
    measure = MeasurePlan(
        num_warmups=bench_plan.require_at_least("--warmup", warmup, 0),
        num_repeats=bench_plan.require_at_least("--repeats", repeats, 1),
        trace_folder=None if profile is None else Path(profile),
        profile_window_s=profile_seconds,
        has_timeline=plot is not None,
    )
    with bench_plan.model_source(model, random_weights, save_checkpoint) as source:
        model_config = read_model_config(source)
        chosen = bench_plan.make_workloads(
            workloads,
            shape,
            source=source,
            rows=bench_plan.file_rows(template, prompt_column, messages_column, system, raw=raw),
            max_tokens=max_tokens,
            limit=limit,
        )
        chosen = bench_plan.fit_to_model(chosen, model_config, temperature=temperature)
        settings = EngineSettings(
            engine=engines[0],
            source=source,
            has_random_weights=random_weights is not None,
            device=cast(Device, one_of("--device", device, get_args(Device))),
            dtype=cast(Dtype, one_of("--dtype", dtype, get_args(Dtype))),
            max_model_len=bench_plan.choose_max_model_len(
                chosen, model_config, asked=max_model_len
            ),
            seed=seed,
            options=engine_fields,
            vllm_options=bench_plan.parse_vllm_options(vllm_arg or []),
            hf_batch_size=bench_plan.require_at_least("--hf-batch-size", hf_batch_size, 1),
        )
        plan = SuitePlan(
            engines=engines,
            settings=settings,
            workloads=chosen,
            measure=measure,
            is_saving_weights=save_checkpoint is not None,
        )
        run_bench(plan, outputs, debug=debug)
    return 0
