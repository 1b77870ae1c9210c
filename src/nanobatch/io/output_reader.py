"""Finished outputs read back: what `--retry-errors` keeps when the journal is gone.

Knows the columns and lines that our writers make; not the inputs they belong to. Memory is
bounded by a few hundred outputs and the longest row.

What a format does not hold is not made up. Flat rows give a stop token back as the text of its
id. OpenAI's shape holds no token counts of a row that was rejected, and those of a prompt once
for all its samples. Token ids and log probabilities are there where the run was asked for them.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanobatch.errors import OutputError
from nanobatch.io.columns import OutputColumns
from nanobatch.io.output_openai import TOKEN_PREFIX
from nanobatch.io.writers import OutputFormat, output_compression, output_format
from nanobatch.request import (
    ErrorCode,
    FinishReason,
    RequestOutput,
    RequestOutputs,
    RowError,
    RowIndex,
)

BATCH_ROWS = 256
BUFFER_BYTES = 1 << 20

_Fields = Mapping[str, Any]
"""A line, or a row of a Parquet file: what is in it is checked as it is taken apart."""

_FAULTS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What taking apart a row that is none of ours raises."""


def iter_output_rows(path: Path, columns: OutputColumns) -> Iterator[tuple[int, RequestOutputs]]:
    """Yield the rows of a finished output in its order, each with all its outputs.

    Error messages come as they stand there, with file:line in front; `without_location` takes it
    away.

    Args:
        path: A `.parquet` or `.jsonl` output (also `.ndjson`, `.gz`, `.zst`); lines may be flat
            or in OpenAI's shape.
        columns: The output's columns: which of the optional ones are ours, not the input's.

    Yields:
        Each row's index and outputs.

    Raises:
        OutputError: The file cannot be read, or is no output of ours.
    """
    own = frozenset(columns.base.names)
    try:
        if output_format(path) is OutputFormat.PARQUET:
            yield from _flat_rows(_parquet_rows(path, own), own)
        else:
            yield from _rows_of_lines(_json_lines(path), own)
    except (*_FAULTS, OSError, pa.ArrowException) as error:
        raise OutputError(
            f"{path} cannot be read back as an output: {_first_line(error)}",
            hint="it was changed or damaged after it was written; --overwrite makes it anew",
        ) from error


def without_location(outputs: RequestOutputs, location: str) -> RequestOutputs:
    """Return outputs whose error messages do not begin with their row's `file:line`."""
    return tuple(
        output
        if output.error is None
        else replace(
            output,
            error=replace(output.error, message=output.error.message.removeprefix(f"{location}: ")),
        )
        for output in outputs
    )


def _parquet_rows(path: Path, own: frozenset[str]) -> Iterator[_Fields]:
    with (
        pa.OSFile(os.fsencode(path)) as opened,
        pq.ParquetFile(opened, pre_buffer=False, buffer_size=BUFFER_BYTES) as file,
    ):
        names = [name for name in file.schema_arrow.names if name in own]
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
            yield from batch.to_pylist()


def _json_lines(path: Path) -> Iterator[_Fields]:
    for line in _lines(path):
        yield json.loads(line)


def _lines(path: Path) -> Iterator[bytes]:
    compression = output_compression(path)
    file = pa.OSFile(os.fsencode(path))
    stream = file if compression is None else pa.CompressedInputStream(file, compression)
    parts: list[bytes] = []
    try:
        while chunk := stream.read(BUFFER_BYTES):
            first, *rest = chunk.split(b"\n")
            parts.append(first)
            if rest:
                yield b"".join(parts)
                parts = [rest.pop()]
                yield from rest
    finally:
        stream.close()
    if any(parts):
        raise ValueError("its last line has no end")


def _rows_of_lines(
    lines: Iterator[_Fields], own: frozenset[str]
) -> Iterator[tuple[int, RequestOutputs]]:
    first = next(lines, None)
    if first is None:
        return iter(())
    lines = chain([first], lines)
    if "row_index" in first:
        return _flat_rows(lines, own)
    return map(_openai_row, lines)


def _flat_rows(
    rows: Iterator[_Fields], own: frozenset[str]
) -> Iterator[tuple[int, RequestOutputs]]:
    outputs = (_flat_output(row, own) for row in rows)
    for row_index, samples in groupby(outputs, key=attrgetter("row_index")):
        yield row_index, tuple(samples)


def _flat_output(row: _Fields, own: frozenset[str]) -> RequestOutput:
    def optional(name: str) -> Any:
        return row.get(name) if name in own else None

    return RequestOutput(
        row_index=RowIndex(row["row_index"]),
        sample_index=row["sample_index"],
        text=row["generated_text"] or "",
        token_ids=tuple(optional("token_ids") or ()),
        finish_reason=_finish_reason(row["finish_reason"]),
        stop_reason=row["stop_reason"],
        num_prompt_tokens=row["prompt_tokens"],
        num_cached_tokens=row["cached_tokens"],
        num_completion_tokens=row["completion_tokens"],
        num_truncated_tokens=optional("truncated_tokens") or 0,
        logprobs=_logprobs(optional("logprobs")),
        error=_error(row["error_code"], row["error_message"]),
    )


def _openai_row(line: _Fields) -> tuple[int, RequestOutputs]:
    row_index = RowIndex(int(line["id"].rpartition("-")[2]))
    body = line["response"]["body"]
    if "choices" not in body:
        error = _error(**line["error"])
        return row_index, (RequestOutput(row_index=row_index, error=error),)
    usage = body["usage"]
    choices: Sequence[_Fields] = body["choices"]
    return row_index, tuple(_sample(row_index, choice, usage) for choice in choices)


def _sample(row_index: RowIndex, choice: _Fields, usage: _Fields) -> RequestOutput:
    details = usage["prompt_tokens_details"]
    error = choice.get("error")
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    token_ids, logprobs = _tokens(choice["logprobs"])
    return RequestOutput(
        row_index=row_index,
        sample_index=choice["index"],
        text=text,
        token_ids=tuple(choice.get("token_ids") or token_ids),
        finish_reason=None if error else _finish_reason(choice["finish_reason"]),
        stop_reason=choice["stop_reason"],
        num_prompt_tokens=usage["prompt_tokens"],
        num_cached_tokens=details["cached_tokens"],
        num_completion_tokens=choice.get("completion_tokens", usage["completion_tokens"]),
        num_truncated_tokens=details.get("truncated_tokens", 0),
        logprobs=logprobs,
        error=_error(**error) if error else None,
    )


def _tokens(logprobs: _Fields | None) -> tuple[list[int], tuple[float, ...] | None]:
    """Return the token ids that OpenAI's `logprobs` name, and the values."""
    if logprobs is None:
        return [], None
    if "content" in logprobs:
        names = [entry["token"] for entry in logprobs["content"]]
        values = [entry["logprob"] for entry in logprobs["content"]]
    else:
        names, values = logprobs["tokens"], logprobs["token_logprobs"]
    return [int(name.removeprefix(TOKEN_PREFIX)) for name in names], tuple(values)


def _finish_reason(text: str | None) -> FinishReason | None:
    return None if text is None else FinishReason(text)


def _logprobs(values: Sequence[float | None] | None) -> tuple[float, ...] | None:
    """Return log probabilities; JSON has null for those that are minus infinity."""
    if values is None:
        return None
    return tuple(-math.inf if value is None else value for value in values)


def _error(code: str | None, message: str | None) -> RowError | None:
    return None if code is None else RowError(code=ErrorCode(code), message=message or "")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
