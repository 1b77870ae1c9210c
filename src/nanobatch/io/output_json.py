"""JSON text for outputs: compact, valid for every reader, whatever the values.

Knows values and text; not rows. The common case costs one call of the C encoder; values that JSON
lacks are replaced only after it has refused them.
"""

import base64
import math
from collections.abc import Callable, Sequence
from datetime import date, time, timedelta
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]

from nanobatch.io.duration_text import duration_text
from nanobatch.io.json_text import replace_surrogates


def to_json(value: object) -> str:
    """Return a value as compact JSON that can be encoded and holds no line separator.

    NaN and infinities are null, lone surrogates U+FFFD, U+2028 and U+2029 escaped. Dates and times
    are ISO 8601 text, durations too (`PT1.5S`), decimals and other objects text, bytes text if they
    are UTF-8, else base64.
    """
    return _readable(json_piece(value))


def json_piece(value: object) -> str:
    """Return a value as `to_json` does, but for what `to_line` does to a whole line."""
    try:
        return "".join(_encode(value, 0))
    except ValueError:
        return "".join(_encode(_without_nan(value), 0))


def text_piece(text: str | None) -> str:
    """Return a text, or null, as `json_piece` does, four times faster."""
    return "null" if text is None else encode_basestring(text)


def to_line(json_text: str) -> bytes:
    r"""Return JSON text put together from pieces as a line that every reader takes, `\n` included.

    Escaping and replacing what lies in strings is safe in any piece: outside of strings JSON is
    ASCII.
    """
    return _readable(json_text).encode() + b"\n"


def to_lines(json_texts: Sequence[str]) -> bytes:
    r"""Return several JSON texts as `to_line` returns one."""
    return to_line("\n".join(json_texts)) if json_texts else b""


def _readable(json_text: str) -> str:
    if json_text.isascii():
        return json_text
    if "\u2028" in json_text or "\u2029" in json_text:
        json_text = json_text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return replace_surrogates(json_text)[0]


def _plain(value: object) -> object:
    """Return a JSON value for an object that JSON lacks."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode("ascii")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return duration_text(value // timedelta(microseconds=1) * 1_000)
    return str(value)


# What `JSONEncoder.encode` makes anew at every call, which takes longer than most values.
_encode: Callable[[object, int], Sequence[str]] = c_make_encoder(
    None,  # nothing is circular here
    _plain,
    encode_basestring,
    None,  # no indentation
    ":",
    ",",
    False,  # keys as they come
    False,  # no key is left out
    False,  # NaN is a ValueError
)


def _without_nan(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_nan(member) for key, member in value.items()}
    return value
