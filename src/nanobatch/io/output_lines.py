"""Lines of a flat output, a few hundred at a time and column by column, before they have a format.

Knows what an output or a sample of the journal says in each of our columns; not formats. Column by
column because a row as an object costs more than writing it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TypeVar

import pyarrow as pa

from nanobatch.io.journal_payload import Sample, logprobs_of, token_ids_of
from nanobatch.io.output_row import ERROR, OK, OutputRow, stop_reason_text
from nanobatch.request import ErrorCode

T = TypeVar("T")
ArrowRow = tuple[pa.RecordBatch, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLines:
    """Some lines of an output in order; every attribute has one entry per line.

    Attributes:
        row_indices: Place of the row among the job's rows.
        ids: The row's id.
        sample_indices: Which of the row's samples the line is.
        statuses: `ok` or `error`.
        texts: Generated text, None for an error; so are most that follow.
        finish_reasons: Why it ended.
        stop_reasons: What ended it, as text.
        num_prompt_tokens: Tokens of the prompt.
        num_cached_tokens: Of those, tokens taken from the prefix cache.
        num_completion_tokens: Tokens generated.
        num_truncated_tokens: Tokens that were cut from the prompt.
        error_codes: Code of the error.
        error_messages: Its message, which begins with file:line.
        token_ids: Generated token ids; empty if nobody asked for them.
        logprobs: Their log probabilities; empty if nobody asked for them.
        passthrough: Pass-through values of the row by input name.
        arrow_rows: Where the row lies in an Arrow batch, or None; see `OutputRow.arrow_row`.
    """

    row_indices: Sequence[int]
    ids: Sequence[str | None]
    sample_indices: Sequence[int]
    statuses: Sequence[str]
    texts: Sequence[str | None]
    finish_reasons: Sequence[str | None]
    stop_reasons: Sequence[str | None]
    num_prompt_tokens: Sequence[int]
    num_cached_tokens: Sequence[int]
    num_completion_tokens: Sequence[int]
    num_truncated_tokens: Sequence[int]
    error_codes: Sequence[str | None]
    error_messages: Sequence[str | None]
    token_ids: Sequence[Sequence[int] | None]
    logprobs: Sequence[Sequence[float] | None]
    passthrough: Sequence[Mapping[str, object]]
    arrow_rows: Sequence[ArrowRow | None]

    def __len__(self) -> int:
        return len(self.row_indices)

    def part(self, start: int, stop: int) -> "OutputLines":
        """Return some of the lines."""
        return OutputLines(
            **{field.name: getattr(self, field.name)[start:stop] for field in fields(self)}
        )


def lines_of_rows(rows: Sequence[OutputRow]) -> OutputLines:
    """Return the lines of rows whose outputs are objects."""
    of_row = [row for row in rows for _ in row.outputs]
    outputs = [output for row in rows for output in row.outputs]
    errors = [output.error for output in outputs]
    return OutputLines(
        row_indices=[output.row_index for output in outputs],
        ids=[row.id for row in of_row],
        sample_indices=[output.sample_index for output in outputs],
        statuses=[OK if error is None else ERROR for error in errors],
        texts=[output.text if output.error is None else None for output in outputs],
        finish_reasons=[output.finish_reason for output in outputs],
        stop_reasons=[stop_reason_text(output.stop_reason) for output in outputs],
        num_prompt_tokens=[output.num_prompt_tokens for output in outputs],
        num_cached_tokens=[output.num_cached_tokens for output in outputs],
        num_completion_tokens=[output.num_completion_tokens for output in outputs],
        num_truncated_tokens=[output.num_truncated_tokens for output in outputs],
        error_codes=[None if error is None else error.code for error in errors],
        error_messages=[
            None if error is None else row.error_message(error)
            for row, error in zip(of_row, errors, strict=True)
        ],
        token_ids=[output.token_ids if output.error is None else None for output in outputs],
        logprobs=[output.logprobs if output.error is None else None for output in outputs],
        passthrough=[row.passthrough for row in of_row],
        arrow_rows=[row.arrow_row for row in of_row],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRows:
    """Rows of an input as an output shows them; every attribute has one entry per row.

    Attributes:
        row_indices: Place among the job's rows.
        ids: Ids as text.
        passthrough: Pass-through values by input name.
        arrow_rows: Where the rows lie in Arrow batches, or None; see `OutputRow.arrow_row`.
        location_of: Returns `file:line` of the row at a place of these lists.
    """

    row_indices: Sequence[int]
    ids: Sequence[str | None]
    passthrough: Sequence[Mapping[str, object]]
    arrow_rows: Sequence[ArrowRow | None]
    location_of: Callable[[int], str]


def lines_of_samples(
    rows: JoinedRows,
    samples: Sequence[Sequence[Sample]],
    *,
    with_token_ids: bool,
    with_logprobs: bool,
) -> OutputLines:
    """Return the lines of rows whose samples were read from the journal."""
    flat = list(chain.from_iterable(samples))
    places: Sequence[int] = range(len(flat))
    if len(flat) > len(samples):
        places = [place for place, of_row in enumerate(samples) for _ in of_row]
    (indices, texts, _, reasons, stops, prompt, cached, completion, _, errors, cut) = zip(
        *flat, strict=True
    )
    lines = OutputLines(
        row_indices=_at(rows.row_indices, places),
        ids=_at(rows.ids, places),
        sample_indices=indices,
        statuses=[OK] * len(flat),
        texts=texts,
        finish_reasons=reasons,
        stop_reasons=list(map(stop_reason_text, stops)),
        num_prompt_tokens=prompt,
        num_cached_tokens=cached,
        num_completion_tokens=completion,
        num_truncated_tokens=cut,
        error_codes=[None] * len(flat),
        error_messages=[None] * len(flat),
        token_ids=list(map(token_ids_of, flat)) if with_token_ids else (),
        logprobs=list(map(logprobs_of, flat)) if with_logprobs else (),
        passthrough=_at(rows.passthrough, places),
        arrow_rows=_at(rows.arrow_rows, places),
    )
    if any(errors):
        return _with_errors(lines, errors, [rows.location_of(place) for place in places])
    return lines


def _at(values: Sequence[T], places: Sequence[int]) -> Sequence[T]:
    return values if type(places) is range else [values[place] for place in places]


def _with_errors(
    lines: OutputLines, errors: Sequence[tuple[str, str] | None], locations: Sequence[str]
) -> OutputLines:
    """Return lines of which some are errors (code and message) and not answers."""
    is_good = [error is None for error in errors]
    bad_text = ErrorCode.INVALID_UTF8.value
    return replace(
        lines,
        statuses=[OK if good else ERROR for good in is_good],
        texts=_only(is_good, lines.texts),
        token_ids=_only(is_good, lines.token_ids),
        logprobs=_only(is_good, lines.logprobs),
        error_codes=[None if error is None else error[0] for error in errors],
        error_messages=[
            None if error is None else f"{location}: {error[1]}"
            for error, location in zip(errors, locations, strict=True)
        ],
        # No reader would take a file with bytes that are no UTF-8.
        arrow_rows=[
            None if error is not None and error[0] == bad_text else arrow_row
            for error, arrow_row in zip(errors, lines.arrow_rows, strict=True)
        ],
    )


def _only(is_good: Sequence[bool], values: Sequence[T | None]) -> Sequence[T | None]:
    if not values:
        return values
    return [value if good else None for good, value in zip(is_good, values, strict=True)]
