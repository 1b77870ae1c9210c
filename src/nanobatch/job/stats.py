"""What a run looks like from outside: immutable snapshots for dashboard, log lines and summary.

Knows nothing of the engine's objects or of how anything is drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """Where a run is. In order; `finalizing` is skipped when writing to standard output."""

    STARTING = "starting"
    LOADING = "loading model"
    RUNNING = "running"
    FINALIZING = "writing output"
    FINISHED = "finished"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended and its numbers no longer change."""
        return self in (Phase.FINISHED, Phase.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStats:
    """A snapshot of a run. Counts are of this job; fields named `_now` cover the last seconds.

    Attributes:
        phase: Where the run is.
        job_name: What to call the run (its output's name).
        model_name: Which model answers.
        elapsed_s: Seconds since the command started.
        num_rows_done: Rows with a recorded result, error rows and resumed rows included.
        num_rows_resumed: Of those, rows finished by earlier runs.
        num_rows_error: Of the done rows, those that are errors.
        error_counts: Error rows by code.
        num_rows_waiting: Rows read and tokenized, not yet admitted (queue depth).
        num_rows_running: Sequences that hold KV blocks.
        num_rows_total: Rows of the job once the input was read to its end, else None.
        input_fraction: Share of the input's bytes whose rows are done, 0 to 1.
        eta_s: Estimated seconds until the last row is done, None while unknown.
        num_blocks: KV blocks of the pool.
        num_blocks_used: Blocks held by one running sequence.
        num_blocks_shared: Blocks held by two or more running sequences.
        num_blocks_cached: Unreferenced blocks whose content can still be reused.
        num_prompt_tokens: Prompt tokens of the rows finished in this run.
        num_cached_tokens: Of the admitted prompt tokens, those taken from the prefix cache.
        num_admitted_prompt_tokens: Prompt tokens of the rows admitted in this run.
        num_prefill_tokens: Tokens computed by the model runner that were not decode steps.
        num_output_tokens: Tokens generated in this run.
        num_attended_tokens: Keys that the rows of all decode steps attended to.
        num_saved_kv_tokens: Of those, keys that were not read, since other rows of the same step
            share them.
        num_preemptions: Sequences sent back to the queue for lack of KV blocks.
        num_preempted_tokens: Computed tokens lost that way.
        prefill_tokens_per_s_now: Prefill tokens per second.
        prefill_tokens_per_s_mean: The same since the first step.
        decode_tokens_per_s_now: Generated tokens per second.
        decode_tokens_per_s_mean: The same since the first step.
        decode_history: Recent values of decode tokens/s, oldest first, one per sampling interval.
        num_rows_max_tokens: Rows that ended because they hit max_tokens.
        num_surrogates: Lone surrogates replaced by U+FFFD.
        gpu_memory_used_bytes: Memory used on the GPU, None without one.
        gpu_memory_total_bytes: Memory of the GPU, None without one.
        gpu_utilization: Share of time the GPU was busy, 0 to 1, None without one.
        phase_seconds: Seconds spent in each finished phase, and in the present one so far.
        load_fraction: Share of the weights that is loaded, 0 to 1.
        finalize_fraction: Share of the output that is written, 0 to 1.
    """

    phase: Phase = Phase.STARTING
    job_name: str = ""
    model_name: str = ""
    elapsed_s: float = 0.0
    num_rows_done: int = 0
    num_rows_resumed: int = 0
    num_rows_error: int = 0
    error_counts: Mapping[str, int] = field(default_factory=dict)
    num_rows_waiting: int = 0
    num_rows_running: int = 0
    num_rows_total: int | None = None
    input_fraction: float = 0.0
    eta_s: float | None = None
    num_blocks: int = 0
    num_blocks_used: int = 0
    num_blocks_shared: int = 0
    num_blocks_cached: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_admitted_prompt_tokens: int = 0
    num_prefill_tokens: int = 0
    num_output_tokens: int = 0
    num_attended_tokens: int = 0
    num_saved_kv_tokens: int = 0
    num_preemptions: int = 0
    num_preempted_tokens: int = 0
    prefill_tokens_per_s_now: float = 0.0
    prefill_tokens_per_s_mean: float = 0.0
    decode_tokens_per_s_now: float = 0.0
    decode_tokens_per_s_mean: float = 0.0
    decode_history: tuple[float, ...] = ()
    num_rows_max_tokens: int = 0
    num_surrogates: int = 0
    gpu_memory_used_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    gpu_utilization: float | None = None
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    load_fraction: float = 0.0
    finalize_fraction: float = 0.0

    @property
    def num_blocks_free(self) -> int:
        """Blocks that hold nothing reusable."""
        taken = self.num_blocks_used + self.num_blocks_shared + self.num_blocks_cached
        return self.num_blocks - taken

    @property
    def prefix_hit_rate(self) -> float:
        """Share of admitted prompt tokens that came from the prefix cache, 0 to 1."""
        if self.num_admitted_prompt_tokens == 0:
            return 0.0
        return self.num_cached_tokens / self.num_admitted_prompt_tokens

    @property
    def kv_saved_rate(self) -> float:
        """Share of the keys attended to in decode steps that sharing saved reading, 0 to 1."""
        if self.num_attended_tokens == 0:
            return 0.0
        return self.num_saved_kv_tokens / self.num_attended_tokens
