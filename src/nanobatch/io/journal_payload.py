"""The outputs of a finished row as JSON text, in a record of the journal.

Knows outputs and text; what stands around it is `journal_record`'s part. Lone surrogates are kept
(`surrogatepass`), numbers of arrays are packed and base64-encoded, so floats are exact and a token
costs 5 bytes.
"""

import json
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from functools import lru_cache
from json.encoder import encode_basestring as _encode_text
from typing import Any

from nanobatch.request import (
    ErrorCode,
    FinishReason,
    RequestOutput,
    RequestOutputs,
    RowError,
    RowIndex,
)

_encode_json = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), check_circular=False
).encode
_decode_json = json.JSONDecoder().raw_decode
Sample = tuple[
    int,  # sample_index
    str,  # text
    str,  # token_ids, int32 in base64
    str | None,  # finish_reason
    str | int | None,  # stop_reason
    int,  # num_prompt_tokens
    int,  # num_cached_tokens
    int,  # num_completion_tokens
    str | None,  # logprobs, float64 in base64
    tuple[str, str] | None,  # error code and message
    int,  # num_truncated_tokens
]
"""An output as JSON, by position: keys would double a short record. Called a sample here, as rows
with one output have one sample."""

_FINISH_REASONS: dict[str | None, FinishReason | None] = {
    None: None,
    **{reason.value: reason for reason in FinishReason},
}
_MAX_PACKERS = 4096


def encode_outputs(outputs: RequestOutputs) -> bytes:
    """Return the outputs of a row as a JSON array."""
    if len(outputs) == 1:  # nearly every row
        return f"[{_sample_piece(outputs[0])}]".encode("utf-8", "surrogatepass")
    return f"[{','.join(map(_sample_piece, outputs))}]".encode("utf-8", "surrogatepass")


def decode_samples(payloads: Sequence[bytes]) -> list[list[Sample]]:
    """Return the samples of rows, from what `encode_outputs` returned for each."""
    # One call for all of them: each is a whole array, as the records' checksums say.
    joined = b",".join(payloads).decode("utf-8", "surrogatepass")
    rows: list[list[Sample]]
    rows, _ = _decode_json(f"[{joined}]")
    return rows


def outputs_of(row_index: RowIndex, samples: Sequence[Sample]) -> RequestOutputs:
    """Return the outputs of a row."""
    return tuple([_output(row_index, sample) for sample in samples])


def token_ids_of(sample: Sample) -> tuple[int, ...]:
    """Return the token ids of a sample."""
    return _unpack_numbers("i", 4, sample[2])


def logprobs_of(sample: Sample) -> tuple[float, ...] | None:
    """Return the log probabilities of a sample, None where they were not asked for."""
    return None if sample[8] is None else _unpack_numbers("d", 8, sample[8])


def _sample_piece(output: RequestOutput) -> str:
    """Return an output as a JSON array in the order of `Sample`.

    Put together by hand, which takes a third of the time of an encoder.
    """
    token_ids, reason, stop_reason = output.token_ids, output.finish_reason, output.stop_reason
    logprobs, error = output.logprobs, output.error
    stop_piece = "null" if stop_reason is None else _encode_json(stop_reason)
    logprobs_piece = "null" if logprobs is None else f'"{_pack_numbers("d", logprobs)}"'
    error_piece = "null" if error is None else _encode_json((error.code, error.message))
    return (
        f'[{output.sample_index},{_encode_text(output.text)},"{_pack_numbers("i", token_ids)}",'
        f"{'null' if reason is None else _encode_text(reason)},{stop_piece},"
        f"{output.num_prompt_tokens},{output.num_cached_tokens},{output.num_completion_tokens},"
        f"{logprobs_piece},{error_piece},{output.num_truncated_tokens}]"
    )


def _output(row_index: RowIndex, sample: Sample) -> RequestOutput:
    index, text, _, reason, stop_reason, num_prompt, num_cached, num_new, _, error, num_cut = sample
    return RequestOutput(  # by position, as the class allows for the sake of speed
        row_index,
        index,
        text,
        token_ids_of(sample),
        _FINISH_REASONS[reason],
        stop_reason,
        num_prompt,
        num_cached,
        num_new,
        num_cut,
        logprobs_of(sample),
        None if error is None else RowError(code=ErrorCode(error[0]), message=error[1]),
    )


def _pack_numbers(kind: str, numbers: tuple[int, ...] | tuple[float, ...]) -> str:
    if not numbers:
        return ""
    return b2a_base64(_layout(kind, len(numbers)).pack(*numbers), newline=False).decode()


@lru_cache(_MAX_PACKERS)
def _layout(kind: str, num_numbers: int) -> struct.Struct:
    return struct.Struct(f"<{num_numbers}{kind}")


def _unpack_numbers(kind: str, num_bytes_each: int, text: str) -> tuple[Any, ...]:
    packed = a2b_base64(text)
    return _layout(kind, len(packed) // num_bytes_each).unpack(packed)
