"""The columns of an output: names, types and order (docs/contract.md, promise 7).

Knows which columns there are and what a pass-through column is called; not how rows are written.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from nanobatch.errors import OutputError
from nanobatch.io.arrow_values import copyable_type

EXTRA = "extra"
"""Column of JSON text: an object of the pass-through values that fit no typed column."""

CLASH_PREFIX = "input_"

_BASE_FIELDS = (
    pa.field("row_index", pa.int64(), nullable=False),
    pa.field("id", pa.string()),
    pa.field("sample_index", pa.int32(), nullable=False),
    pa.field("status", pa.string(), nullable=False),
    pa.field("generated_text", pa.large_string()),
    pa.field("finish_reason", pa.string()),
    pa.field("stop_reason", pa.string()),
    pa.field("prompt_tokens", pa.int64()),
    pa.field("cached_tokens", pa.int64()),
    pa.field("completion_tokens", pa.int64()),
    pa.field("error_code", pa.string()),
    pa.field("error_message", pa.large_string()),
)
_PLACE_OF_TRUNCATED_TOKENS = 1 + [field.name for field in _BASE_FIELDS].index("completion_tokens")
_TRUNCATED_TOKENS = pa.field("truncated_tokens", pa.int64())
_TOKEN_IDS = pa.field("token_ids", pa.list_(pa.int32()))
_LOGPROBS = pa.field("logprobs", pa.list_(pa.float32()))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputColumns:
    """What columns an output has; made by `output_columns`.

    Attributes:
        base: Our own columns, in order.
        passthrough: Typed pass-through columns by their input names, in order.
        names: Output name of each typed pass-through column.
        selected: Input names that pass through; None lets all through.
        has_extra: Whether there is a column `extra` for what fits no typed column.
    """

    base: pa.Schema
    passthrough: pa.Schema
    names: Mapping[str, str]
    selected: frozenset[str] | None
    has_extra: bool

    @property
    def schema(self) -> pa.Schema:
        """The output's schema: our columns, the pass-through columns, `extra`."""
        fields = [
            *self.base,
            *(pa.field(self.names[field.name], field.type) for field in self.passthrough),
        ]
        if self.has_extra:
            fields.append(pa.field(EXTRA, pa.large_string()))
        return pa.schema(fields)

    @property
    def has_truncated_tokens(self) -> bool:
        """Whether the column `truncated_tokens` is written."""
        return _TRUNCATED_TOKENS.name in self.base.names

    @property
    def has_token_ids(self) -> bool:
        """Whether the column `token_ids` is written."""
        return _TOKEN_IDS.name in self.base.names

    @property
    def has_logprobs(self) -> bool:
        """Whether the column `logprobs` is written."""
        return _LOGPROBS.name in self.base.names

    def is_selected(self, name: str) -> bool:
        """Return whether a pass-through column is kept."""
        return self.selected is None or name in self.selected


def output_columns(
    passthrough: pa.Schema,
    *,
    selected: Sequence[str] | None = None,
    has_extra: bool = True,
    include_truncated_tokens: bool = False,
    include_token_ids: bool = False,
    include_logprobs: bool = False,
) -> OutputColumns:
    """Lay out the columns of an output.

    A pass-through column whose name is one of ours gets `input_` in front, as often as it takes
    to reach a name that no other column has; columns without a clash keep their names.

    Args:
        passthrough: Columns of the input that may pass through, with their types.
        selected: Input names to keep, in this order; None keeps all, an empty sequence none.
        has_extra: Whether values may turn up that fit none of the columns: true unless every
            input declares its columns and all declare the same.
        include_truncated_tokens: Add the column `truncated_tokens`.
        include_token_ids: Add the column `token_ids`.
        include_logprobs: Add the column `logprobs`.

    Raises:
        OutputError: A selected column is not in the input, which declares its columns.
    """
    base = list(_BASE_FIELDS)
    if include_truncated_tokens:
        base.insert(_PLACE_OF_TRUNCATED_TOKENS, _TRUNCATED_TOKENS)
    base += [_TOKEN_IDS] if include_token_ids else []
    base += [_LOGPROBS] if include_logprobs else []
    if selected is not None:
        passthrough = _select(passthrough, selected, is_declared=not has_extra)
    has_extra = has_extra and (selected is None or len(selected) > 0)
    reserved = {field.name for field in base} | ({EXTRA} if has_extra else set())
    return OutputColumns(
        base=pa.schema(base),
        passthrough=pa.schema([(field.name, _roomy_type(field.type)) for field in passthrough]),
        names=names_without_clash(passthrough.names, reserved),
        selected=None if selected is None else frozenset(selected),
        has_extra=has_extra,
    )


def merge_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the pass-through columns of several inputs as one schema.

    Types of a column are widened where Arrow can do so without loss (int32 and int64 give int64);
    where not, the first input's type stays, and values of the others go to `extra`.
    """
    merged: dict[str, pa.DataType] = {}
    for field in (field for schema in schemas for field in schema):
        known = merged.get(field.name)
        merged[field.name] = field.type if known is None else _wider_type(known, field.type)
    return pa.schema(list(merged.items()))


def free_name(name: str, taken: Iterable[str]) -> str:
    """Return a name, with `input_` in front as often as it takes to be none of those taken."""
    taken = set(taken)
    while name in taken:
        name = CLASH_PREFIX + name
    return name


def names_without_clash(inputs: Sequence[str], reserved: set[str]) -> dict[str, str]:
    """Return a name per input name: its own, or the next free one where it is reserved."""
    taken = reserved | set(inputs)
    names = {}
    for name in inputs:
        names[name] = free_name(name, taken) if name in reserved else name
        taken.add(names[name])
    return names


def _select(passthrough: pa.Schema, selected: Sequence[str], *, is_declared: bool) -> pa.Schema:
    known = set(passthrough.names)
    missing = [name for name in selected if name not in known]
    if missing and is_declared:
        raise OutputError(
            f"--columns names {missing[0]!r}, which the input does not have",
            hint=f"it has {', '.join(passthrough.names) or 'no columns to pass through'}",
        )
    return pa.schema([passthrough.field(name) for name in dict.fromkeys(selected) if name in known])


def _roomy_type(data_type: pa.DataType) -> pa.DataType:
    """Return a type that holds the values of several inputs, or of several row groups.

    pandas writes a column of categories with 8-bit indices where one file has few of them; their
    number over all files has no such bound.
    """
    if pa.types.is_dictionary(data_type):
        return pa.dictionary(pa.int32(), data_type.value_type, data_type.ordered)
    return copyable_type(data_type)


def _wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one.equals(other):
        return one
    try:
        schemas = [pa.schema([("column", one)]), pa.schema([("column", other)])]
        wider = pa.unify_schemas(schemas, promote_options="permissive").field("column").type
    except pa.ArrowException:
        return one
    is_lossy = pa.types.is_floating(wider) and (
        pa.types.is_integer(one) != pa.types.is_integer(other)
    )
    return one if is_lossy else wider
