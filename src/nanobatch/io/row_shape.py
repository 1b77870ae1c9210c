"""What a row is: an OpenAI batch line, a flat row, a row of a table, or a line of text.

Knows which top-level names each shape takes for itself; everything else passes through to the
output. Told apart row by row, so that files can be mixed.
"""

import datetime
import math
from collections.abc import Mapping, Set
from decimal import Decimal
from enum import Enum, auto
from uuid import UUID

from nanobatch.io.chat_messages import structured
from nanobatch.io.input_row import Fields, InputRow
from nanobatch.io.parameter_names import BATCH_LINE_NAMES, PROMPT_NAMES, flat_consumed_names
from nanobatch.io.row_fault import RowFault, shown
from nanobatch.io.row_params import PARAMETERS
from nanobatch.io.text_lines import TEXT_COLUMN
from nanobatch.job_config import RowConfig
from nanobatch.request import ErrorCode

FLAT_NAMES = PARAMETERS.keys() | flat_consumed_names()
"""Names that are never columns in a flat row."""

CHAT_URL = "/v1/chat/completions"

_CUSTOM_ID, _ID = "custom_id", "id"
ID_NAMES = (_ID, _CUSTOM_ID)
"""Names where a row's id stands if nobody says where."""


class RowShape(Enum):
    """How a row says what to answer."""

    BATCH_LINE = auto()
    FLAT = auto()
    TABLE = auto()
    TEXT = auto()


_CONSUMED_NAMES: Mapping[RowShape, Set[str]] = {
    RowShape.BATCH_LINE: BATCH_LINE_NAMES,
    RowShape.FLAT: FLAT_NAMES,
    RowShape.TABLE: frozenset(),
    RowShape.TEXT: frozenset({TEXT_COLUMN}),
}


def shape_of(row: InputRow, fields: Mapping[str, object], *, is_table: bool) -> RowShape:
    """Tell a row's shape.

    A flat row may have a column called `body` (mails do): it is a batch line only without a
    prompt of its own, or with both a custom_id and an object as body.
    """
    if is_table:
        return RowShape.TABLE
    if row.source.format == "text":
        return RowShape.TEXT
    body = fields.get("body")
    if body is None:
        return RowShape.FLAT
    has_object, has_custom_id = isinstance(body, dict), fields.get(_CUSTOM_ID) is not None
    if any(fields.get(name) is not None for name in PROMPT_NAMES):
        is_batch_line = has_object and has_custom_id
    else:
        names_endpoint = fields.get("url") is not None or fields.get("method") is not None
        is_batch_line = has_object or has_custom_id or names_endpoint
    return RowShape.BATCH_LINE if is_batch_line else RowShape.FLAT


def asks_for_chat(fields: Mapping[str, object], shape: RowShape, row_config: RowConfig) -> bool:
    """Return whether a row asks for a turn of a chat, and not for the rest of a text.

    A batch line says so by its url or else by its messages; a prompt that is to be a user turn
    counts as a chat whether or not the model has a chat template. Never raises: the row may be
    at fault.
    """
    if shape is RowShape.BATCH_LINE:
        url = fields.get("url")
        if url is not None:
            return url == CHAT_URL
        try:
            body, _ = structured("body", fields.get("body"))
        except RowFault:
            return False
        return isinstance(body, dict) and body.get("messages") is not None
    if shape is RowShape.FLAT:
        return fields.get("messages") is not None
    return row_config.messages_column is not None or not row_config.raw


def id_name(fields: Mapping[str, object], shape: RowShape, row_config: RowConfig) -> str | None:
    """Return which top-level name holds the row's id, or None where it has none."""
    if shape is RowShape.BATCH_LINE:
        name = _CUSTOM_ID
    elif row_config.id_column is not None:
        name = row_config.id_column
    else:
        name = _CUSTOM_ID if _is_absent(fields.get(_ID)) else _ID
    return None if _is_absent(fields.get(name)) else name


def id_text(name: str, value: object) -> str:
    """Return an id as text; numbers and dates as they are written.

    Raises:
        RowFault: `bad_type`: it is an object, an array, a boolean, or bytes.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return str(int(value))  # pandas turns integer ids into floats where some are missing
    if isinstance(value, float | Decimal | datetime.date | datetime.time | UUID):
        return str(value)
    raise RowFault(ErrorCode.BAD_TYPE, f"{name} is {shown(value)}; it must be a string or a number")


def other_columns(fields: Fields, shape: RowShape, row_config: RowConfig) -> Fields:
    """Return the columns that pass through: those that the shape does not take for itself.

    A null where an id may stand is an absent id, not a column.
    """
    consumed = _CONSUMED_NAMES[shape]
    id_column = id_name(fields, shape, row_config)
    id_names = ID_NAMES if row_config.id_column is None else (row_config.id_column,)
    return {
        name: value
        for name, value in fields.items()
        if name not in consumed
        and name != id_column
        and not (name in id_names and _is_absent(value))
    }


def _is_absent(value: object) -> bool:
    """Return whether an id is none: null, or the NaN of a column of numbers that has gaps."""
    return value is None or (isinstance(value, float) and math.isnan(value))
