"""What the engine says of a sequence that has ended, in the boundary's own words.

Pure functions from sequences to `RequestOutput`; knows no scheduler and no tokenizer.
"""

from nanobatch.engine.sequence import Sequence
from nanobatch.engine.stopping import Ending
from nanobatch.request import (
    ErrorCode,
    FinishReason,
    Request,
    RequestOutput,
    RequestOutputs,
    RowError,
)


def answer(sequence: Sequence, ending: Ending, text: str) -> RequestOutput:
    """Return the output of a sequence that generated all it wanted.

    Args:
        sequence: The sequence.
        ending: How it ended.
        text: Text of its first `ending.num_text_tokens` tokens.
    """
    return RequestOutput(
        row_index=sequence.row_index,
        sample_index=sequence.sample_index,
        text=text[: ending.num_text_chars],
        token_ids=tuple(sequence.output_token_ids),
        finish_reason=ending.finish_reason,
        stop_reason=ending.stop_reason,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_cached_tokens=sequence.num_cached_tokens or 0,
        num_completion_tokens=len(sequence.output_token_ids),
        num_truncated_tokens=sequence.num_truncated_tokens,
        logprobs=tuple(sequence.logprobs) if sequence.logprobs else None,
    )


def nan_logits(sequence: Sequence) -> RequestOutput:
    """Return the output of a sequence whose next token cannot be told."""
    place = len(sequence.output_token_ids)
    message = f"the model's logits for output token {place} hold NaN or +inf"
    return _failure(sequence, RowError(code=ErrorCode.NAN_LOGITS, message=message))


def timed_out(sequence: Sequence, *, elapsed_s: float, timeout_s: float) -> RequestOutput:
    """Return the output of a sequence that took too long.

    Args:
        sequence: The sequence.
        elapsed_s: Seconds since it was first scheduled.
        timeout_s: Seconds it was allowed.
    """
    message = f"row ran {round(elapsed_s, 2):g} s; --row-timeout is {timeout_s:g} s"
    return _failure(sequence, RowError(code=ErrorCode.TIMEOUT, message=message))


def refusal(
    request: Request,
    error: RowError,
    *,
    num_prompt_tokens: int = 0,
    num_truncated_tokens: int = 0,
) -> RequestOutputs:
    """Return the one output of a request that can never run."""
    output = RequestOutput(
        row_index=request.row_index,
        num_prompt_tokens=num_prompt_tokens,
        num_truncated_tokens=num_truncated_tokens,
        error=error,
    )
    return (output,)


def empty_answers(
    request: Request, *, num_prompt_tokens: int, num_truncated_tokens: int
) -> RequestOutputs:
    """Return the outputs of a request for no tokens, one a sample."""
    return tuple(
        RequestOutput(
            row_index=request.row_index,
            sample_index=sample_index,
            finish_reason=FinishReason.LENGTH,
            num_prompt_tokens=num_prompt_tokens,
            num_truncated_tokens=num_truncated_tokens,
        )
        for sample_index in range(request.params.n)
    )


def _failure(sequence: Sequence, error: RowError) -> RequestOutput:
    return RequestOutput(
        row_index=sequence.row_index,
        sample_index=sequence.sample_index,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_cached_tokens=sequence.num_cached_tokens or 0,
        num_completion_tokens=len(sequence.output_token_ids),
        num_truncated_tokens=sequence.num_truncated_tokens,
        error=error,
    )
