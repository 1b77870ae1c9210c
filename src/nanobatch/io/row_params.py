"""Sampling parameters of a row: from what JSON, Parquet or CSV hold to `SamplingParams`.

Knows types and names. Bounds are those of `SamplingParams` itself; whose value applies when a
row is silent was settled before (`defaults`).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from nanobatch.io.json_text import JsonError, decode_json
from nanobatch.io.row_fault import RowFault, shown
from nanobatch.request import ErrorCode, SamplingParams

MAX_CACHED_PARAMS = 1024
MAX_COUNT = (1 << 31) - 1
"""No context and no vocabulary is this large: counts above it mean the same as it."""


class ParameterReader:
    """Turns the parameters that a row gives into `SamplingParams`, one object per distinct set.

    Most rows of a file give the same values, and a validated object costs more than all the
    rest of a row.
    """

    def __init__(self, defaults: SamplingParams, vocab_size: int | None) -> None:
        self._defaults = defaults
        self._vocab_size = vocab_size
        self._known: dict[tuple[tuple[str, object], ...], SamplingParams] = {}

    def read(self, given: Mapping[str, object]) -> SamplingParams:
        """Return the defaults with a row's own values in place.

        Args:
            given: Values by name, all in `PARAMETERS` and none of them None.

        Raises:
            RowFault: `bad_params`: a type or a value is wrong.
        """
        if not given:
            return self._defaults
        try:
            values = {name: PARAMETERS[name](name, value) for name, value in given.items()}
            if "max_completion_tokens" in values:
                _merge_alias(values)
            key = tuple(values.items())
            return self._known.get(key) or self._remember(key, values)
        except ValueError as error:
            raise RowFault(ErrorCode.BAD_PARAMS, str(error)) from None

    def _remember(
        self, key: tuple[tuple[str, object], ...], values: Mapping[str, object]
    ) -> SamplingParams:
        params = dataclasses.replace(self._defaults, **values)  # type: ignore[arg-type]
        self._require_in_vocabulary("stop_token_ids", params.stop_token_ids)
        self._require_in_vocabulary("logit_bias", [token_id for token_id, _ in params.logit_bias])
        if len(self._known) >= MAX_CACHED_PARAMS:
            self._known.clear()
        self._known[key] = params
        return params

    def _require_in_vocabulary(self, name: str, token_ids: Sequence[int]) -> None:
        if self._vocab_size is None:
            return
        for token_id in token_ids:
            if token_id >= self._vocab_size:
                raise ValueError(
                    f"{name} holds token id {token_id}; the vocabulary has {self._vocab_size:,}"
                )


def _merge_alias(values: dict[str, object]) -> None:
    alias = values.pop("max_completion_tokens")
    if values.setdefault("max_tokens", alias) != alias:
        raise ValueError(
            f"max_tokens is {values['max_tokens']} and max_completion_tokens is {alias}; "
            "they are one parameter"
        )


def parameter_from_text(name: str, text: str) -> object:
    """Return what a CSV field says about a parameter: numbers parsed, empty text is None.

    Booleans may have capitals, as pandas writes them.
    """
    if not text.strip():
        return None
    lowered = text.strip().lower()
    try:
        value, flaws, _ = decode_json(lowered if lowered in ("true", "false") else text)
    except JsonError:
        return text
    return text if flaws or (name == "stop" and not isinstance(value, list)) else value


def read_integer(name: str, value: object) -> int:
    """Return an integer; integral floats (pandas' `256.0`) are integers, booleans are not.

    Raises:
        ValueError: It is something else.
    """
    if type(value) is int:
        return value
    if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
        return int(value)
    raise _wrong_type(name, value, "an integer")


def read_token_ids(name: str, value: object) -> tuple[int, ...]:
    """Return a list of token ids as a tuple.

    Raises:
        ValueError: It is no list, or holds something else than integers.
    """
    if not isinstance(value, list | tuple):
        raise _wrong_type(name, value, "a list of token ids")
    if set(map(type, value)) <= {int}:
        return tuple(value)
    return tuple(read_integer(f"{name}[{place}]", item) for place, item in enumerate(value))


def _read_count(name: str, value: object) -> int:
    return min(read_integer(name, value), MAX_COUNT)


def _read_number(name: str, value: object) -> float:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _wrong_type(name, value, "a number")


def _read_boolean(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong_type(name, value, "true or false")


def _read_top_k(name: str, value: object) -> int | None:
    top_k = read_integer(name, value)
    return None if top_k in (0, -1) or top_k >= MAX_COUNT else top_k


def _read_stop(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise _wrong_type(name, value, "a string or a list of strings")
    for place, item in enumerate(value):
        if not isinstance(item, str):
            raise _wrong_type(f"{name}[{place}]", item, "a string")
    return tuple(value)


def _read_logit_bias(name: str, value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict):
        raise _wrong_type(name, value, "an object of token ids and numbers")
    biases = {}
    for key, bias in value.items():
        if bias is None:
            continue  # how Parquet shows a key that only other rows have
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise ValueError(f"{name} has the key {shown(key)}; keys must be token ids")
        biases[int(key)] = _read_number(f"{name} of token {key}", bias)
    return tuple(sorted(biases.items()))


def _wrong_type(name: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{name} is {shown(value)}; it must be {wanted}")


PARAMETERS: Mapping[str, Callable[[str, object], object]] = {
    "frequency_penalty": _read_number,
    "ignore_eos": _read_boolean,
    "logit_bias": _read_logit_bias,
    "max_completion_tokens": _read_count,
    "max_tokens": _read_count,
    "min_p": _read_number,
    "min_tokens": _read_count,
    "n": read_integer,
    "presence_penalty": _read_number,
    "repetition_penalty": _read_number,
    "seed": read_integer,
    "stop": _read_stop,
    "stop_token_ids": read_token_ids,
    "temperature": _read_number,
    "top_k": _read_top_k,
    "top_p": _read_number,
}
"""How each sampling parameter's value is read, by its name in a row."""
