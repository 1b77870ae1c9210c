"""Lines of JSONL that were valid once: changed in their values, their keys, their bytes."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'nobody' %}{{ raise_exception('nobody speaks') }}{% endif %}"
    "{{ message['role'] + ': ' + message['content'] }}\n"
    "{% endfor %}"
)
"""A chat template that refuses some messages."""

_CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "caf\u00e9 \u2028?"},
]
_PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
]
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
_SEEDS: tuple[dict[str, Any], ...] = (
    {"prompt": "the answer is", "id": "a", "max_tokens": 2, "note": {"deep": [1, {"x": None}]}},
    {"prompt": "a review", "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 7, "score": 1.5},
    {"input_ids": [40, 41, 42, 43], "stop_token_ids": [50], "logit_bias": {"60": -3}},
    {"messages": _CHAT, "chat_template_kwargs": {"enable_thinking": False}, "stop": ["x", "yy"]},
    {"messages": _PARTS, "priority": 3, "min_p": 0.05, "presence_penalty": 0.5, "n": 2},
    {"messages": _CHAT, "tools": _TOOLS, "tool_choice": "auto", "frequency_penalty": 0.1},
    {
        "custom_id": "one",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": _CHAT, "max_completion_tokens": 3, "user": "u"},
    },
    {
        "custom_id": "two",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"prompt": "once upon", "max_tokens": 3, "stop": "z", "stream": False},
    },
    {"custom_id": "three", "body": {"prompt": ["only one"], "response_format": {"type": "text"}}},
)
_NAMES = (
    *("prompt", "messages", "input_ids", "id", "custom_id", "method", "url", "body", "model"),
    *("max_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop", "logit_bias", "echo"),
    *("role", "content", "text", "type", "tools", "tool_calls", "function", "arguments", "name"),
    *("priority", "response_format", "best_of", "logprobs", "status", "row_index", "extra", ""),
)
_SCALARS: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, 2.0, 0.5, 3, 319, 320, 2**31, 2**63, 10**400, 1e308),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "text", "user", "nobody", "auto"),
    *("\ud800", "\udc00 half", "\x00", "\u2028", "json_object", "[1]", "{}", "/v1/embeddings"),
)
_PIECES = (b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b'"', b"\\u12", b"}", b"[", b"\x00", b"\xc3", b",")
_DEPTHS = (3, 60, 400, 3_000)
_DEEP, _HUGE = "@deep@", "@huge@"


def mutated_lines(random: Random, num_lines: int) -> Iterator[bytes]:
    """Yield lines that are rows, whatever became of them: none is blank, none holds a newline."""
    for number in range(num_lines):
        line = _mutated(random, number).replace(b"\n", b" ")
        yield line if line.replace(b"\xef\xbb\xbf", b"").strip() else b"blank"


def _mutated(random: Random, number: int) -> bytes:
    row = json.loads(json.dumps(random.choice(_SEEDS)))
    if "custom_id" in row and random.random() < 0.9:
        row["custom_id"] = f"{row['custom_id']} {number}"
    kind = random.random()
    if kind < 0.01:
        row = {"input_ids": [random.randrange(36, 120)] * random.choice((1_500, 1_700, 2_200))}
    elif kind < 0.02:
        row = {"messages": [{"role": "nobody", "content": "hush"}]}
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        random.choice(_CHANGES)(random, row)
    line = _text(random, row).encode("utf-8", "surrogatepass")
    if kind > 0.62:
        for _ in range(random.choice((1, 1, 2, 5))):
            line = random.choice(_BYTE_CHANGES)(random, line)
    return line


def _text(random: Random, row: dict[str, Any]) -> str:
    """Return a row as JSON, now and then with what no encoder writes."""
    text = json.dumps(row, ensure_ascii=random.random() < 0.7)
    depth = random.choice(_DEPTHS)
    text = text.replace(f'"{_DEEP}"', "[" * depth + "]" * depth)
    text = text.replace(f'"{_HUGE}"', "9" * random.choice((30, 5_000)))
    if random.random() < 0.03:
        text = f'{{"{random.choice(_NAMES)}": 1, {text[1:]}'
    if random.random() < 0.03:
        text = f"{text[:-1]}, {text[1:]}"
    return text


def _place(random: Random, row: dict[str, Any]) -> tuple[Any, Any]:
    """Return a container somewhere in a row and a key or index in it."""
    container: Any = row
    while True:
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        key = random.choice(keys)
        inner = container[key]
        if not isinstance(inner, dict | list) or not inner or random.random() < 0.4:
            return container, key
        container = inner


def _value(random: Random) -> object:
    kind = random.random()
    if kind < 0.8:
        return random.choice(_SCALARS)
    if kind < 0.9:
        return random.choice((_DEEP, _HUGE))
    return random.choice(([], {}, [1, 2], ["a"], [[]], {"role": "user"}, {"type": "text"}, [None]))


def _replace(random: Random, row: dict[str, Any]) -> None:
    if row:
        container, key = _place(random, row)
        container[key] = _value(random)


def _remove(random: Random, row: dict[str, Any]) -> None:
    if row:
        container, key = _place(random, row)
        del container[key]


def _rename(random: Random, row: dict[str, Any]) -> None:
    if row:
        row[random.choice(_NAMES)] = row.pop(random.choice(list(row)))


def _add(random: Random, row: dict[str, Any]) -> None:
    inner = row.get("body")
    target = inner if isinstance(inner, dict) and random.random() < 0.7 else row
    target[random.choice(_NAMES)] = _value(random)


_CHANGES: tuple[Callable[[Random, dict[str, Any]], None], ...] = (_replace, _remove, _rename, _add)


def _flip(random: Random, line: bytes) -> bytes:
    place = random.randrange(len(line) + 1)
    return line[:place] + bytes([random.randrange(256)]) + line[place + 1 :]


def _cut(random: Random, line: bytes) -> bytes:
    return line[: random.randrange(len(line) + 1)]


def _insert(random: Random, line: bytes) -> bytes:
    place = random.randrange(len(line) + 1)
    pieces = (
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\r",
        b'"',
        b"\\u12",
        b"}",
        b"[",
        b"\x00",
        b"\xc3",
        b",",
    )
    return line[:place] + random.choice(pieces) + line[place:]


def _swap(random: Random, line: bytes) -> bytes:
    place = random.randrange(len(line) + 1)
    return line[place:] + line[:place]


def _scalar(random: Random, _line: bytes) -> bytes:
    return random.choice((b"1", b"null", b'"text"', b"[{}]", b"NaN", b"{", b"\x00", b"-", b"{}x"))


_BYTE_CHANGES = (_flip, _flip, _flip, _cut, _insert, _insert, _swap, _scalar)
