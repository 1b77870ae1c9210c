"""What the writers write comes back as it was, as far as each format holds it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanobatch.errors import OutputError
from nanobatch.io.columns import OutputColumns, output_columns
from nanobatch.io.json_text import replace_surrogates
from nanobatch.io.output_openai import MIN_LOGPROB, OpenAiJob
from nanobatch.io.output_reader import iter_output_rows, without_location
from nanobatch.io.output_row import OutputRow
from nanobatch.io.writers import open_writer
from nanobatch.request import ErrorCode, RequestOutput, RequestOutputs, RowError, RowIndex
from tests.io.output_strategies import answer, fault, outputs

ALL = output_columns(
    pa.schema([("token_ids", pa.large_string())]),
    include_truncated_tokens=True,
    include_token_ids=True,
    include_logprobs=True,
)
FEW = output_columns(pa.schema([("token_ids", pa.large_string())]))
JOB = OpenAiJob(model_name="tiny", key="0123456789abcdef")
FLAT_NAMES = ["out.jsonl", "out.jsonl.gz", "out.ndjson.zst", "out.parquet"]
OPENAI_NAMES = ["out.jsonl", "out.jsonl.zst"]


@st.composite
def outputs_with_logprobs(draw: st.DrawFn, row_index: int, place: int) -> RequestOutput:
    output = draw(outputs(row_index, place))
    if output.logprobs is None:
        return output
    num_tokens = len(output.token_ids)
    values = st.lists(
        st.floats(max_value=0.0, width=32, allow_nan=False),
        min_size=num_tokens,
        max_size=num_tokens,
    )
    return replace(output, logprobs=tuple(draw(values)))


@st.composite
def rows_of_outputs(draw: st.DrawFn) -> list[RequestOutputs]:
    def row(row_index: int) -> RequestOutputs:
        num_samples = draw(st.sampled_from([1, 1, 1, 3]))
        samples = tuple(
            draw(outputs_with_logprobs(row_index, place)) for place in range(num_samples)
        )
        return samples[:1] if all(sample.error for sample in samples) else samples

    return [row(place) for place in range(5, 5 + draw(st.integers(0, 4)))]


def write(
    path: Path,
    rows: Sequence[RequestOutputs],
    columns: OutputColumns,
    *,
    openai: OpenAiJob | None = None,
    is_chat: bool = False,
) -> list[RequestOutputs]:
    """Write rows and read them back."""
    with open_writer(path, columns, openai=openai) as writer:
        for samples in rows:
            passthrough = {"token_ids": "of the input"}
            row = OutputRow("a", samples, passthrough=passthrough, is_chat=is_chat)
            writer.write(row)
    found = list(iter_output_rows(path, columns))
    assert [row_index for row_index, _ in found] == [samples[0].row_index for samples in rows]
    return [samples for _, samples in found]


def readable(text: str) -> str:
    return replace_surrogates(text)[0]


def as_flat(output: RequestOutput, columns: OutputColumns) -> RequestOutput:
    """Return what a flat row holds of an output."""
    error = output.error
    has_logprobs = columns.has_logprobs and error is None
    stop_reason = None if output.stop_reason is None else readable(str(output.stop_reason))
    return replace(
        output,
        text=readable(output.text) if error is None else "",
        token_ids=output.token_ids if columns.has_token_ids and error is None else (),
        stop_reason=stop_reason,
        num_truncated_tokens=output.num_truncated_tokens if columns.has_truncated_tokens else 0,
        logprobs=output.logprobs if has_logprobs else None,
        error=None if error is None else replace(error, message=readable(error.message)),
    )


def as_openai(output: RequestOutput, samples: RequestOutputs) -> RequestOutput:
    """Return what a line in OpenAI's shape holds of an output, if its row was not rejected."""
    error, logprobs, first = output.error, output.logprobs, samples[0]
    if logprobs is not None:
        logprobs = tuple(max(value, MIN_LOGPROB) for value in logprobs)
    stop_reason = output.stop_reason
    return replace(
        output,
        text=readable(output.text) if error is None else "",
        token_ids=output.token_ids if error is None else (),
        finish_reason=output.finish_reason if error is None else None,
        stop_reason=readable(stop_reason) if isinstance(stop_reason, str) else stop_reason,
        num_prompt_tokens=first.num_prompt_tokens,
        num_cached_tokens=first.num_cached_tokens,
        num_truncated_tokens=first.num_truncated_tokens,
        logprobs=logprobs if error is None else None,
        error=None if error is None else replace(error, message=readable(error.message)),
    )


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(
    rows=rows_of_outputs(),
    name=st.sampled_from(FLAT_NAMES),
    columns=st.sampled_from([ALL, FEW]),
)
def test_flat_rows_come_back(
    name: str, columns: OutputColumns, rows: list[RequestOutputs], tmp_path: Path
) -> None:
    assert write(tmp_path / name, rows, columns) == [
        tuple(as_flat(output, columns) for output in samples) for samples in rows
    ]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
@given(rows=rows_of_outputs(), name=st.sampled_from(OPENAI_NAMES), is_chat=st.booleans())
def test_rows_in_openai_s_shape_come_back(
    name: str, is_chat: bool, rows: list[RequestOutputs], tmp_path: Path
) -> None:
    found = write(tmp_path / name, rows, ALL, openai=JOB, is_chat=is_chat)
    for samples, read in zip(rows, found, strict=True):
        if all(output.error for output in samples):
            assert [output.error for output in read] == [
                as_openai(output, samples).error for output in samples
            ]
        else:
            assert read == tuple(as_openai(output, samples) for output in samples)


def test_logprobs_name_their_tokens_where_the_run_kept_no_token_ids(tmp_path: Path) -> None:
    columns = output_columns(pa.schema([]), include_logprobs=True)
    output = replace(answer(0), logprobs=(-0.5, -1.5))
    for is_chat in (True, False):
        path = tmp_path / "out.jsonl"
        assert write(path, [(output,)], columns, openai=JOB, is_chat=is_chat) == [(output,)]


def test_an_output_of_a_million_tokens_of_text_is_one_row(tmp_path: Path) -> None:
    rows = [(answer(0, "é" * 3_000_000),), (answer(1),)]
    for name in FLAT_NAMES:
        assert write(tmp_path / name, rows, ALL) == rows


def test_the_place_of_an_error_is_taken_off_its_message() -> None:
    error = RowError(code=ErrorCode.BAD_ROW, message="in.jsonl:4: no: in.jsonl:4: fields")
    failed = RequestOutput(row_index=RowIndex(3), error=error)
    good = answer(3)
    assert without_location((failed, good), "in.jsonl:4") == (
        replace(failed, error=replace(error, message="no: in.jsonl:4: fields")),
        good,
    )
    assert without_location((fault(3),), "in.jsonl:4") == (fault(3),)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("out.jsonl", b"[]\n", "list indices must be integers or slices, not str"),
        ("out.jsonl", b'{"a":1}\n', "'id'"),
        ("out.jsonl", b'{"row_index":0}\n', "'sample_index'"),
        ("out.jsonl", b'{"row_index":0}', "its last line has no end"),
        ("out.jsonl", b"{\n", "Expecting property name enclosed in double quotes"),
        ("out.jsonl.gz", b"\x1f\x8b\x08\x00", "Truncated compressed stream"),
        ("out.parquet", b"PAR1", "Parquet file size is 4 bytes"),
    ],
)
def test_what_is_no_output_of_ours_is_refused_by_name(
    name: str, content: bytes, what: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(OutputError) as caught:
        list(iter_output_rows(path, FEW))
    assert caught.value.message.startswith(f"{path} cannot be read back as an output: {what}")
