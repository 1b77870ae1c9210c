"""Rows to Arrow: one record batch from a few hundred outputs and their rows.

Knows how values become columns without losing any: what does not fit its column's type goes to
`extra`. Rows that still lie in an Arrow batch are copied column by column, with their types; the
others go through Python values.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nanobatch.io.arrow_values import copyable_type
from nanobatch.io.column_typer import Fits, fits_type
from nanobatch.io.columns import OutputColumns
from nanobatch.io.json_text import replace_surrogates_within
from nanobatch.io.output_json import to_json
from nanobatch.io.output_row import ERROR, OK, OutputRow, stop_reason_text
from nanobatch.request import RequestOutput

_NONE = type(None)
_EXACT_KINDS: dict[pa.DataType, set[type]] = {
    pa.string(): {str, _NONE},
    pa.large_string(): {str, _NONE},
    pa.bool_(): {bool, _NONE},
    pa.int64(): {int, _NONE},
    pa.float64(): {float, int, _NONE},
}
"""Python types that pyarrow turns into a type unchanged, or refuses (too wide, a surrogate)."""

_REFUSED = (pa.ArrowException, OverflowError, UnicodeEncodeError)


class _Column(NamedTuple):
    name: str
    data_type: pa.DataType
    fits: Fits
    exact_kinds: set[type] | None


class _Group(NamedTuple):
    """Rows of a batch that share an Arrow batch, or that have none."""

    source: pa.RecordBatch | None
    positions: list[int]
    places: list[int]
    rows: list[OutputRow]


class BatchBuilder:
    """Builds record batches of an output's schema."""

    def __init__(self, columns: OutputColumns) -> None:
        self._schema = columns.schema
        self._columns = columns
        self._passthrough = [
            _Column(field.name, field.type, fits_type(field.type), _EXACT_KINDS.get(field.type))
            for field in columns.passthrough
        ]
        self._known = frozenset(columns.passthrough.names)

    def build(self, rows: Sequence[OutputRow], outputs: Sequence[RequestOutput]) -> pa.RecordBatch:
        """Return outputs, each with its row, as one batch in their order.

        Args:
            rows: The row of each output; one with several outputs stands there as often.
            outputs: As many as rows.
        """
        arrays = self._base_arrays(rows, outputs)
        extras: dict[int, dict[str, object]] = {}
        groups = _group_by_source(rows)
        order = [position for group in groups for position in group.positions]
        is_in_order = len(groups) == 1 or order == list(range(len(order)))
        inverse = None if is_in_order else pa.array(np.argsort(order))
        for column in self._passthrough:
            pieces = [_piece(column, group, extras) for group in groups]
            array = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
            arrays.append(array if inverse is None else array.take(inverse))
        if self._columns.has_extra:
            self._collect_unknown(groups, extras)
            texts = [
                to_json(extras[place]) if place in extras else None for place in range(len(rows))
            ]
            arrays.append(pa.array(texts, pa.large_string()))
        else:
            assert not extras, "the job said that every value fits its column"
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _base_arrays(
        self, rows: Sequence[OutputRow], outputs: Sequence[RequestOutput]
    ) -> list[pa.Array]:
        errors = [output.error for output in outputs]
        values: dict[str, list[object]] = {
            "row_index": [output.row_index for output in outputs],
            "id": [row.id for row in rows],
            "sample_index": [output.sample_index for output in outputs],
            "status": [OK if error is None else ERROR for error in errors],
            "generated_text": [output.text if output.error is None else None for output in outputs],
            "finish_reason": [output.finish_reason for output in outputs],
            "stop_reason": [stop_reason_text(output) for output in outputs],
            "prompt_tokens": [output.num_prompt_tokens for output in outputs],
            "cached_tokens": [output.num_cached_tokens for output in outputs],
            "completion_tokens": [output.num_completion_tokens for output in outputs],
            "error_code": [None if error is None else error.code for error in errors],
            "error_message": [
                None if error is None else row.error_message(error)
                for row, error in zip(rows, errors, strict=True)
            ],
        }
        if self._columns.has_truncated_tokens:
            values["truncated_tokens"] = [output.num_truncated_tokens for output in outputs]
        if self._columns.has_token_ids:
            values["token_ids"] = [
                output.token_ids if output.error is None else None for output in outputs
            ]
        if self._columns.has_logprobs:
            values["logprobs"] = [
                output.logprobs if output.error is None else None for output in outputs
            ]
        return [_array(values[field.name], field.type) for field in self._columns.base]

    def _collect_unknown(self, groups: list[_Group], extras: dict[int, dict[str, object]]) -> None:
        """Put values under keys without a column into `extra`; null equals absent."""
        for group in groups:
            if group.source is not None:
                continue
            for position, row in zip(group.positions, group.rows, strict=True):
                if row.passthrough.keys() <= self._known:
                    continue
                for name, value in row.passthrough.items():
                    if value is None or name in self._known or not self._columns.is_selected(name):
                        continue
                    extras.setdefault(position, {})[name] = value


def _group_by_source(rows: Sequence[OutputRow]) -> list[_Group]:
    groups: dict[int | None, _Group] = {}
    for position, row in enumerate(rows):
        source, place = row.arrow_row or (None, 0)
        key = None if source is None else id(source)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group(source, [], [], [])
        group.positions.append(position)
        group.places.append(place)
        group.rows.append(row)
    return list(groups.values())


def _piece(column: _Column, group: _Group, extras: dict[int, dict[str, object]]) -> pa.Array:
    """Return a pass-through column for the rows of a group."""
    if group.source is None:
        values = [row.passthrough.get(column.name) for row in group.rows]
        return _fitted(column, values, group, extras)
    place = group.source.schema.get_field_index(column.name)
    if place < 0:
        return pa.nulls(len(group.rows), column.data_type)
    array = group.source.column(place)
    copyable = copyable_type(array.type)
    if not copyable.equals(array.type):
        array = array.cast(copyable)
    array = array.take(pa.array(group.places, pa.int64()))
    if pa.types.is_dictionary(array.type):
        array = _without_unused(array)
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    if array.type.equals(column.data_type):
        return array
    try:
        return array.cast(column.data_type)
    except pa.ArrowException:
        return _fitted(column, array.to_pylist(), group, extras)


def _without_unused(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Drop what a dictionary has beside the values of an array, where that is most of it.

    A reader's batch has the dictionary of its row group, which would be held, and counted as
    bytes, with every few rows. One whose order means something is left as it is.
    """
    if array.type.ordered or len(array.dictionary) <= len(array):
        return array
    return array.dictionary_decode().dictionary_encode()


def _fitted(
    column: _Column, values: list[object], group: _Group, extras: dict[int, dict[str, object]]
) -> pa.Array:
    """Return values as a column; those that do not fit are null there and go to `extra`."""
    if column.exact_kinds is not None and set(map(type, values)) <= column.exact_kinds:
        try:
            return pa.array(values, column.data_type, from_pandas=True)  # NaN becomes null
        except _REFUSED:
            pass  # some value is too wide or has a surrogate: look at each
    fitting: list[object] = []
    for position, value in zip(group.positions, values, strict=True):
        if column.fits(value):
            fitting.append(value)
        else:
            fitting.append(None)
            extras.setdefault(position, {})[column.name] = value
    return _array(fitting, column.data_type)


def _array(values: list[object], data_type: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, data_type, from_pandas=True)
    except UnicodeEncodeError:
        return pa.array(replace_surrogates_within(values)[0], data_type, from_pandas=True)
