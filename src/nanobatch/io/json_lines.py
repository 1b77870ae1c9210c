"""Many lines of JSON at once: the clean ones, which are nearly all, at half the price.

Knows lines and which of them `json_text.decode_json` must look at one by one; not rows. Python's
scanner says nothing of duplicate keys unless it calls a function for every object, which takes as
long as the scan. Here the colons of all lines are counted instead. An object has a colon behind
every key, directly or after white space, so there are at least as many such colons as members in
the text, and in the text at least as many members as in the value. Where both ends are equal, no
key stood twice. A text that holds such colons in its strings is only looked at more closely.
"""

import secrets
from collections.abc import Sequence
from json.scanner import make_scanner

import numpy as np
import numpy.typing as npt

from nanobatch.io.json_text import MAX_NESTING, SURROGATE_ESCAPE, WITHOUT_KEYS_CHECKED

MAX_BLOCK_BYTES = 1 << 18
"""Bytes that are counted at a time; a line that is longer is not decoded here."""

Object = dict[str, object]

_scan = make_scanner(WITHOUT_KEYS_CHECKED)  # type: ignore[arg-type]  # typed as what it returns
_SPACE, _QUOTE, _COLON, _BRACKET, _BRACE = b' ":[{'


def decode_clean_objects(lines: Sequence[bytes]) -> list[Object | None]:
    """Decode the lines that are objects without a flaw; the others are None.

    Args:
        lines: Lines that are not empty, without white space around them.
    """
    if sum(map(len, lines)) > MAX_BLOCK_BYTES:
        if len(lines) == 1:
            return [None]
        half = len(lines) // 2
        return decode_clean_objects(lines[:half]) + decode_clean_objects(lines[half:])
    separator = f',"{secrets.token_hex(8)}",'.encode()
    block = separator.join(lines)
    values = _decoded_together(block, len(lines), mark=separator[2:-2].decode())
    if values is None:
        values = list(map(_decoded, lines))
    if b"\\" in block:  # looked for first because it is found much faster
        for place, line in enumerate(lines):
            if b"\\u" in line and SURROGATE_ESCAPE.search(line.decode(errors="replace")):
                values[place] = None
    sizes_bytes = [len(line) + len(separator) for line in lines]
    _drop_doubtful(values, sizes_bytes, np.frombuffer(block, np.uint8))
    return values


def _decoded_together(block: bytes, num_lines: int, *, mark: str) -> list[Object | None] | None:
    """Decode lines that are joined by marks to one array; None if not all of them are JSON.

    Nobody knew the mark when the lines were written. A line that goes on in the next one swallows
    a mark, and a line of several values has none between them: either shows.
    """
    try:
        text = f"[{block.decode()}]"
        items, end = _scan(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return None
    if (
        end != len(text)
        or len(items) != 2 * num_lines - 1
        or items[1::2] != [mark] * len(items[1::2])
    ):
        return None
    return [item if type(item) is dict else None for item in items[::2]]


def _decoded(line: bytes) -> Object | None:
    """Return the object that a line is, of duplicate keys the last one; None without one."""
    try:
        text = line.decode()
        value, end = _scan(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return None
    return value if end == len(text) and type(value) is dict else None


def _drop_doubtful(
    values: list[Object | None], sizes_bytes: Sequence[int], block: npt.NDArray[np.uint8]
) -> None:
    """Set to None what may have a key twice or be nested too deeply.

    Args:
        values: The lines' values.
        sizes_bytes: What each takes of the block, with what stands between it and the next.
        block: The lines.
    """
    before = block[:-1]
    may_end_key = (block[1:] == _COLON) & ((before == _QUOTE) | (before <= _SPACE))
    is_brace, is_bracket = block == _BRACE, block == _BRACKET
    num_braces, num_brackets = np.count_nonzero(is_brace), np.count_nonzero(is_bracket)
    num_good = len(values) - values.count(None)
    is_flat = num_braces == len(values)
    num_members = [
        0 if value is None else len(value) if is_flat else _num_members(value) for value in values
    ]
    # Every object has a brace, so what is left of the braces bounds the nesting of any of them.
    is_shallow = num_braces + num_brackets - num_good < MAX_NESTING
    if is_shallow and np.count_nonzero(may_end_key) == sum(num_members):
        return
    starts = np.zeros(len(values), np.int64)
    np.cumsum(sizes_bytes[:-1], out=starts[1:])
    num_ends = np.add.reduceat(np.append(False, may_end_key), starts, dtype=np.int64)
    nesting = np.add.reduceat(is_brace | is_bracket, starts, dtype=np.int64)
    is_doubtful = (num_ends != num_members) | (nesting > MAX_NESTING)
    for place in np.flatnonzero(is_doubtful).tolist():
        values[place] = None


def _num_members(value: Object) -> int:
    """Return the members of an object and of all objects inside."""
    try:
        return _count_members(value)
    except RecursionError:
        return 0


def _count_members(value: Object) -> int:
    num_members = len(value)
    for item in value.values():
        if type(item) is dict:
            num_members += _count_members(item)
        elif type(item) is list:
            num_members += _count_in_list(item)
    return num_members


def _count_in_list(items: list[object]) -> int:
    num_members = 0
    for item in items:
        if type(item) is dict:
            num_members += _count_members(item)
        elif type(item) is list:
            num_members += _count_in_list(item)
    return num_members
