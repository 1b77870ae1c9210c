"""Hypothesis strategies and plain examples of finished rows."""

from dataclasses import replace

from hypothesis import strategies as st

from nanobatch.io.journal_record import JournalRecord
from nanobatch.request import (
    ErrorCode,
    FinishReason,
    RequestOutput,
    RequestOutputs,
    RowError,
    RowIndex,
)

any_text = st.text(alphabet=st.characters(exclude_categories=()), max_size=60)
tokens = st.integers(0, 2**31 - 1)
counts = st.integers(0, 2**20)


@st.composite
def outputs(draw: st.DrawFn, row_index: int, sample_index: int) -> RequestOutput:
    error = None
    if draw(st.booleans()) and draw(st.booleans()):
        error = RowError(code=draw(st.sampled_from(ErrorCode)), message=draw(any_text))
    token_ids = tuple(draw(st.lists(tokens, max_size=8)))
    floats = st.lists(st.floats(allow_nan=False), max_size=8).map(tuple)
    return RequestOutput(
        row_index=RowIndex(row_index),
        sample_index=sample_index,
        text=draw(any_text),
        token_ids=token_ids,
        finish_reason=draw(st.none() | st.sampled_from(FinishReason)),
        stop_reason=draw(st.none() | any_text | tokens),
        num_prompt_tokens=draw(counts),
        num_cached_tokens=draw(counts),
        num_completion_tokens=draw(counts),
        num_truncated_tokens=draw(counts),
        logprobs=draw(st.none() | floats),
        error=error,
    )


@st.composite
def records(draw: st.DrawFn, max_row_index: int = 2**63 - 1) -> JournalRecord:
    row_index = draw(st.integers(0, max_row_index))
    num_samples = draw(st.integers(1, 4))
    samples = tuple(draw(outputs(row_index, place)) for place in range(num_samples))
    return JournalRecord(RowIndex(row_index), draw(st.integers(0, 2**64 - 1)), samples)


def answer(
    row_index: int, text: str = "Paris.", *, finish_reason: FinishReason = FinishReason.STOP
) -> RequestOutput:
    return RequestOutput(
        row_index=RowIndex(row_index),
        text=text,
        token_ids=(40, 41),
        finish_reason=finish_reason,
        num_prompt_tokens=12,
        num_cached_tokens=4,
        num_completion_tokens=2,
    )


def samples(row_index: int, num_samples: int) -> RequestOutputs:
    return tuple(
        replace(answer(row_index, f"answer {place}"), sample_index=place)
        for place in range(num_samples)
    )


def fault(row_index: int, code: ErrorCode = ErrorCode.BAD_ROW) -> RequestOutput:
    error = RowError(code=code, message="row has 2 fields; the header has 3")
    return RequestOutput(row_index=RowIndex(row_index), error=error)


def record(row_index: int, text: str = "Paris.", *, payload_hash: int = 7) -> JournalRecord:
    return JournalRecord(RowIndex(row_index), payload_hash, (answer(row_index, text),))
