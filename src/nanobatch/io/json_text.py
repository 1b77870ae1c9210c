"""JSON as untrusted rows bring it: what Python's parser lets through is found and named.

Knows nothing of rows. Python accepts NaN, lets `1e400` become infinity, keeps the last of
duplicate keys, passes lone surrogates, and raises errors that are no `JSONDecodeError` on deep
nesting and on integers of more than 4,300 digits. Clean text takes the C scanner with hooks
that cost well under a microsecond; only text with a flaw is parsed again, with markers.
"""

import math
import re
from collections.abc import Iterable, Mapping
from json import JSONDecodeError, JSONDecoder
from typing import NamedTuple, NoReturn

MAX_NESTING = 100
"""Deepest nesting of objects and arrays in a row: far below any recursion limit, so that every
later stage (templates, writers) can walk what was accepted here."""

MAX_INTEGER_DIGITS = 4300
"""Longest integer that is parsed; Python's own default bound (CVE-2020-10735)."""

_JSON_WHITESPACE = " \t\n\r\x0b\x0c"
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """Text is not JSON, or nested too deeply; the message says what and where."""


class DecodedJson(NamedTuple):
    """A value and what is wrong with parts of it.

    Attributes:
        value: The value, cleaned: NaN and infinity are None, of duplicate keys the last one
            stays, an integer too long is its text, lone surrogates are U+FFFD.
        flaws: For an object, reasons by top-level key whose value had a flaw anywhere inside;
            for anything else, the reason under the empty string.
        num_surrogates: Lone surrogates replaced.
    """

    value: object
    flaws: Mapping[str, str]
    num_surrogates: int


def decode_json(text: str) -> DecodedJson:
    """Decode one JSON value.

    Args:
        text: The JSON text; white space around it is accepted.

    Raises:
        JsonError: The text is not JSON or nests deeper than `MAX_NESTING`.
    """
    text = text.strip(_JSON_WHITESPACE)
    flaws: Mapping[str, str] = {}
    num_surrogates = 0
    try:
        try:
            value = _scan(_STRICT, text)
        except (JSONDecodeError, RecursionError):
            raise
        except ValueError:
            value, flaws = _without_flaws(_scan(_MARKING, text))
        if text.count("{") + text.count("[") > MAX_NESTING:
            _require_shallow(value)
        if "\\u" in text and SURROGATE_ESCAPE.search(text):
            value, num_surrogates = replace_surrogates_within(value)
    except JSONDecodeError as error:
        raise JsonError(f"not valid JSON: {error.msg} (column {error.colno:,})") from None
    except RecursionError:
        raise JsonError(f"nested too deeply; at most {MAX_NESTING} levels are read") from None
    return DecodedJson(value, flaws, num_surrogates)


def replace_surrogates(text: str) -> tuple[str, int]:
    """Return text with lone surrogates replaced by U+FFFD, and how many there were."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.subn("\N{REPLACEMENT CHARACTER}", text)
    return text, 0


def replace_surrogates_within(value: object) -> tuple[object, int]:
    """Return a JSON value with lone surrogates replaced in all strings and keys, and how many."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        pairs = [replace_surrogates_within(item) for item in value]
        return [item for item, _ in pairs], sum(count for _, count in pairs)
    if isinstance(value, dict):
        keys = [replace_surrogates(key) for key in value]
        items = [replace_surrogates_within(item) for item in value.values()]
        cleaned = {key: item for (key, _), (item, _) in zip(keys, items, strict=True)}
        return cleaned, sum(count for _, count in (*keys, *items))
    return value, 0


class _FlawFoundError(ValueError):
    """Stops the fast scan; never leaves this module."""


class _Flaw:
    """Stands for a value that is not to be trusted, in a value that the marking scan made."""

    __slots__ = ("reason", "value")

    def __init__(self, reason: str, value: object) -> None:
        self.reason = reason
        self.value = value


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _FlawFoundError
    return members


def _finite_float(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise _FlawFoundError
    return value


def _refuse_constant(literal: str) -> NoReturn:
    raise _FlawFoundError


def _mark_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        members[key] = _Flaw("is given twice", value) if key in members else value
    return members


def _mark_float(literal: str) -> object:
    value = float(literal)
    return _Flaw(f"holds {literal[:40]}, beyond any float", None) if math.isinf(value) else value


def _mark_integer(literal: str) -> object:
    num_digits = len(literal.lstrip("-"))
    if num_digits <= MAX_INTEGER_DIGITS:
        return int(literal)
    bound = f"at most {MAX_INTEGER_DIGITS:,} are read"
    return _Flaw(f"holds an integer of {num_digits:,} digits; {bound}", literal)


def _mark_constant(literal: str) -> object:
    return _Flaw(f"holds {literal}, which is not JSON", None)


_STRICT = JSONDecoder(
    object_pairs_hook=_unique_keys, parse_float=_finite_float, parse_constant=_refuse_constant
)
WITHOUT_KEYS_CHECKED = JSONDecoder(parse_float=_finite_float, parse_constant=_refuse_constant)
"""Raises ValueError for a value with a flaw, except that of duplicate keys it keeps the last."""
_MARKING = JSONDecoder(
    object_pairs_hook=_mark_duplicates,
    parse_float=_mark_float,
    parse_int=_mark_integer,
    parse_constant=_mark_constant,
)


def _scan(decoder: JSONDecoder, text: str) -> object:
    value, end = decoder.raw_decode(text)
    if end != len(text):
        raise JSONDecodeError("text after the value", text, end)
    return value


def _without_flaws(marked: object) -> tuple[object, dict[str, str]]:
    """Return a marked value cleaned, and the reasons by top-level key (see `DecodedJson`)."""
    if isinstance(marked, dict):
        parts = {key: _settle(member) for key, member in marked.items()}
        reasons = {key: reason for key, (_, reason) in parts.items() if reason is not None}
        return {key: value for key, (value, _) in parts.items()}, reasons
    value, reason = _settle(marked)
    return value, {} if reason is None else {"": reason}


def _settle(marked: object) -> tuple[object, str | None]:
    """Return a marked value cleaned, and the first reason to distrust it or None."""
    if isinstance(marked, _Flaw):
        return _settle(marked.value)[0], marked.reason
    if isinstance(marked, list):
        items = [_settle(item) for item in marked]
        return [value for value, _ in items], _first_reason(reason for _, reason in items)
    if isinstance(marked, dict):
        parts = {key: _settle(member) for key, member in marked.items()}
        named = (
            reason and f"has a member {key[:40]!r} that {reason}"
            for key, (_, reason) in parts.items()
        )
        return {key: value for key, (value, _) in parts.items()}, _first_reason(named)
    return marked, None


def _first_reason(reasons: Iterable[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _require_shallow(value: object) -> None:
    """Check the nesting level by level, without recursion."""
    level = [value]
    for _ in range(MAX_NESTING):
        children: list[object] = []
        for container in level:
            if isinstance(container, dict):
                children.extend(container.values())
            elif isinstance(container, list):
                children.extend(container)
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return
    raise RecursionError
