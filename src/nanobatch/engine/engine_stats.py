"""What an engine has done and how busy it is: one immutable snapshot of plain numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters since the engine started, and its present load.

    Attributes:
        num_waiting: Sequences not admitted yet.
        num_unfinished_tokens: Prompt tokens of all requests without an output.
        num_running: Sequences that hold KV blocks.
        num_blocks: Size of the KV pool.
        num_blocks_used: Blocks held by exactly one sequence.
        num_blocks_shared: Blocks held by two or more sequences.
        num_blocks_cached: Free blocks whose content can be reused.
        num_steps: Steps whose results were read.
        num_prefill_tokens: Tokens computed that were not the one new token of a decode step.
        num_output_tokens: Tokens generated and kept.
        num_prompt_tokens: Prompt tokens of finished sequences.
        num_admitted_prompt_tokens: Prompt tokens of sequences admitted for the first time.
        num_cached_tokens: Of those, tokens taken from the prefix cache.
        num_attended_tokens: Keys that the rows of all decode steps attended to.
        num_saved_kv_tokens: Of those, keys that were not read, since other rows of the same step
            share them.
        num_preemptions: Times a sequence was sent back for lack of blocks.
        num_preempted_tokens: Computed tokens lost that way.
        step_seconds: Time spent in steps.
    """

    num_waiting: int
    num_unfinished_tokens: int
    num_running: int
    num_blocks: int
    num_blocks_used: int
    num_blocks_shared: int
    num_blocks_cached: int
    num_steps: int
    num_prefill_tokens: int
    num_output_tokens: int
    num_prompt_tokens: int
    num_admitted_prompt_tokens: int
    num_cached_tokens: int
    num_attended_tokens: int
    num_saved_kv_tokens: int
    num_preemptions: int
    num_preempted_tokens: int
    step_seconds: float
