"""When a sequence ends: stop tokens, stop strings, length.

Pure functions over token ids and text; knows no scheduler and no device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanobatch.engine.sequence import Sequence as EngineSequence
from nanobatch.request import KV_CAPACITY, FinishReason, SamplingParams

MAX_TOKENS_PER_CHARACTER = 4
"""A byte-level vocabulary spells a character with at most four tokens (one a UTF-8 byte)."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What a character is decoded to while some of its bytes are missing."""

Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True, kw_only=True)
class Ending:
    """Why a sequence ended and what of it is text.

    Nobody changes one; not frozen, as one is made per row.

    Attributes:
        finish_reason: `stop` or `length`.
        stop_reason: The stop string, stop token id or `kv_capacity`, else None.
        num_text_tokens: Output tokens whose text counts (a stop token's does not).
        num_text_chars: Characters of their text before the stop string; None keeps all.
    """

    finish_reason: FinishReason
    stop_reason: str | int | None
    num_text_tokens: int
    num_text_chars: int | None = None


def find_ending(sequence: EngineSequence, *, decode: Decode, is_kv_bound: bool) -> Ending | None:
    """Return how a sequence ends with its newest token, or None if it goes on.

    Stop tokens win over stop strings, both over length. Stop strings are looked for in the
    text of the last few tokens only, so the cost of a step does not grow with the output.
    """
    num_output = len(sequence.output_token_ids)
    token_id = sequence.output_token_ids[-1]
    params = sequence.params
    if num_output > params.min_tokens and token_id in sequence.eos_token_ids:
        stop_reason = token_id if token_id in params.stop_token_ids else None
        return Ending(
            finish_reason=FinishReason.STOP,
            stop_reason=stop_reason,
            num_text_tokens=num_output - 1,
        )
    if params.stop and num_output >= params.min_tokens:
        is_last = num_output >= sequence.max_tokens
        found = _newest_stop_string(
            sequence.output_token_ids, params, decode if is_last else _decided_text(decode)
        )
        if found is not None:
            num_text_chars, stop = found
            return Ending(
                finish_reason=FinishReason.STOP,
                stop_reason=stop,
                num_text_tokens=num_output,
                num_text_chars=num_text_chars,
            )
    if num_output >= sequence.max_tokens:
        return Ending(
            finish_reason=FinishReason.LENGTH,
            stop_reason=KV_CAPACITY if is_kv_bound else None,
            num_text_tokens=num_output,
        )
    return None


def _decided_text(decode: Decode) -> Decode:
    """Decode without the end that later tokens may still change: a character in its making.

    A stop string may hold the replacement character itself. It must not be found where only
    bytes are missing; one that the model really said is found with the token after it.
    """
    return lambda token_ids: decode(token_ids).rstrip(REPLACEMENT)


def _newest_stop_string(
    token_ids: Sequence[int], params: SamplingParams, decode: Decode
) -> tuple[int, str] | None:
    """Return where the first stop string in the text begins, and which it is."""
    stops = params.stop
    num_tail_tokens = MAX_TOKENS_PER_CHARACTER * max(map(len, stops)) + 2 * MAX_TOKENS_PER_CHARACTER
    tail = decode(token_ids[-num_tail_tokens:])
    if not any(stop in tail for stop in stops):
        return None
    # The tail may begin inside a character; only the whole text says what really stands there.
    text = decode(token_ids)
    # One that was complete before min_tokens is passed over for good.
    num_passed = len(_decided_text(decode)(token_ids[: max(params.min_tokens - 1, 0)]))
    begins = [(text.find(stop, max(num_passed - len(stop) + 1, 0)), stop) for stop in stops]
    return min((found for found in begins if found[0] >= 0), default=None)
