"""Snapshots as a real run would give them."""

import math
from dataclasses import replace

from nanobatch.job.stats import JobStats, Phase

RUNNING = JobStats(
    phase=Phase.RUNNING,
    job_name="answers.parquet",
    model_name="SmolLM2-360M-Instruct",
    elapsed_s=724.0,
    num_rows_done=6_140,
    num_rows_resumed=1_000,
    num_rows_error=3,
    error_counts={"invalid_json": 1, "prompt_too_long": 2},
    num_rows_waiting=812,
    num_rows_running=48,
    num_rows_total=10_000,
    input_fraction=0.614,
    eta_s=250.0,
    num_blocks=2_048,
    num_blocks_used=1_004,
    num_blocks_shared=310,
    num_blocks_cached=602,
    num_prompt_tokens=1_733_001,
    num_cached_tokens=1_234_567,
    num_admitted_prompt_tokens=1_740_000,
    num_prefill_tokens=505_433,
    num_output_tokens=512_000,
    num_preemptions=2,
    num_preempted_tokens=1_024,
    prefill_tokens_per_s_now=1_204.0,
    prefill_tokens_per_s_mean=1_180.0,
    decode_tokens_per_s_now=3_310.0,
    decode_tokens_per_s_mean=3_102.0,
    decode_history=tuple(2_300 + 900 * math.sin(i / 5) + i * 37 % 11 * 40 for i in range(60)),
    num_rows_max_tokens=412,
    phase_seconds={"starting": 0.4, "loading model": 9.0, "running": 714.6},
)

ON_GPU = replace(
    RUNNING,
    gpu_memory_used_bytes=61 << 30,
    gpu_memory_total_bytes=80 << 30,
    gpu_utilization=0.97,
)

SHARING = replace(ON_GPU, num_attended_tokens=2_500_000_000, num_saved_kv_tokens=2_052_250_000)
"""82.09 % of the keys that decode steps attended to were not read again."""

FINISHED = replace(
    RUNNING,
    phase=Phase.FINISHED,
    elapsed_s=980.0,
    num_rows_done=10_000,
    num_rows_waiting=0,
    num_rows_running=0,
    num_blocks_used=0,
    num_blocks_shared=0,
    input_fraction=1.0,
    finalize_fraction=1.0,
    eta_s=None,
    num_preemptions=5,
    phase_seconds={"starting": 0.4, "loading model": 9.0, "running": 967.6, "writing output": 3.0},
)
EMPTY = JobStats()
