"""Rows to Arrow: one record batch from a few hundred outputs and their rows.

Knows how values become columns without losing any: what does not fit its column's type goes to
`extra`. Rows that still lie in an Arrow batch are copied column by column, with their types; the
others go through Python values.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nanobatch.io.arrow_values import copyable_type
from nanobatch.io.column_typer import Fits, fits_type
from nanobatch.io.columns import OutputColumns
from nanobatch.io.json_text import replace_surrogates_within
from nanobatch.io.output_json import to_json
from nanobatch.io.output_lines import OutputLines

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
    """Lines of a batch whose rows share an Arrow batch, or have none."""

    source: pa.RecordBatch | None
    positions: Sequence[int]
    places: Sequence[int]
    passthrough: Sequence[Mapping[str, object]]


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

    def build(self, lines: OutputLines) -> pa.RecordBatch:
        """Return lines as one batch in their order."""
        arrays = self._base_arrays(lines)
        extras: dict[int, dict[str, object]] = {}
        groups = _group_by_source(lines)
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
                to_json(extras[place]) if place in extras else None for place in range(len(lines))
            ]
            arrays.append(pa.array(texts, pa.large_string()))
        else:
            assert not extras, "the job said that every value fits its column"
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _base_arrays(self, lines: OutputLines) -> list[pa.Array]:
        values: dict[str, Sequence[object]] = {
            "row_index": lines.row_indices,
            "id": lines.ids,
            "sample_index": lines.sample_indices,
            "status": lines.statuses,
            "generated_text": lines.texts,
            "finish_reason": lines.finish_reasons,
            "stop_reason": lines.stop_reasons,
            "prompt_tokens": lines.num_prompt_tokens,
            "cached_tokens": lines.num_cached_tokens,
            "completion_tokens": lines.num_completion_tokens,
            "truncated_tokens": lines.num_truncated_tokens,
            "error_code": lines.error_codes,
            "error_message": lines.error_messages,
            "token_ids": lines.token_ids,
            "logprobs": lines.logprobs,
        }
        return [_array(values[field.name], field.type) for field in self._columns.base]

    def _collect_unknown(self, groups: list[_Group], extras: dict[int, dict[str, object]]) -> None:
        """Put values under keys without a column into `extra`; null equals absent."""
        for group in groups:
            if group.source is not None or self._known.issuperset(chain(*group.passthrough)):
                continue
            for position, passed in zip(group.positions, group.passthrough, strict=True):
                if passed.keys() <= self._known:
                    continue
                for name, value in passed.items():
                    if value is None or name in self._known or not self._columns.is_selected(name):
                        continue
                    extras.setdefault(position, {})[name] = value


def _group_by_source(lines: OutputLines) -> list[_Group]:
    num_lines = len(lines)
    if not any(lines.arrow_rows):
        return [_Group(None, range(num_lines), range(num_lines), lines.passthrough)]
    sources = {id(arrow_row and arrow_row[0]) for arrow_row in lines.arrow_rows}
    if len(sources) == 1 and lines.arrow_rows[0] is not None:
        places = [arrow_row[1] for arrow_row in lines.arrow_rows if arrow_row is not None]
        return [_Group(lines.arrow_rows[0][0], range(num_lines), places, lines.passthrough)]
    groups: dict[int | None, tuple[pa.RecordBatch | None, list[int], list[int]]] = {}
    for position, arrow_row in enumerate(lines.arrow_rows):
        source, place = arrow_row or (None, 0)
        group = groups.setdefault(None if source is None else id(source), (source, [], []))
        group[1].append(position)
        group[2].append(place)
    return [
        _Group(source, positions, places, [lines.passthrough[place] for place in positions])
        for source, positions, places in groups.values()
    ]


def _piece(column: _Column, group: _Group, extras: dict[int, dict[str, object]]) -> pa.Array:
    """Return a pass-through column for the rows of a group."""
    if group.source is None:
        values = [passed.get(column.name) for passed in group.passthrough]
        return _fitted(column, values, group, extras)
    place = group.source.schema.get_field_index(column.name)
    if place < 0:
        return pa.nulls(len(group.positions), column.data_type)
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


def _array(values: Sequence[object], data_type: pa.DataType) -> pa.Array:
    if not any(values) and values.count(None) == len(values):
        return pa.nulls(len(values), data_type)
    try:
        return pa.array(values, data_type, from_pandas=True)
    except UnicodeEncodeError:
        return pa.array(replace_surrogates_within(list(values))[0], data_type, from_pandas=True)
