"""Fields of a CSV record, which are all text, as the values that a row of JSON would have.

Knows which names hold parameters; not how records are read.
"""

from collections.abc import Mapping, Set

from nanobatch.io.input_row import Fields
from nanobatch.io.row_params import parameter_from_text
from nanobatch.io.row_shape import FLAT_NAMES

_TYPED_FLAT_NAMES = FLAT_NAMES - {"prompt"}


def typed(fields: Mapping[str, object], names: Set[str]) -> Fields:
    """Return CSV fields with the named ones parsed."""
    return {
        name: parameter_from_text(name, value)
        if name in names and isinstance(value, str)
        else value
        for name, value in fields.items()
    }


def typed_flat(fields: Fields) -> Fields:
    """Return the fields of a flat CSV row parsed, except the prompt, which is text.

    An empty prompt beside messages or input_ids is how CSV says null.
    """
    values = typed(fields, _TYPED_FLAT_NAMES)
    others = (values.get("messages"), values.get("input_ids"))
    if values.get("prompt") == "" and any(other is not None for other in others):
        del values["prompt"]
    return values
