"""The boundary nouns: what goes into the engine for a row and what comes out of it.

Knows nothing of files, tokens in flight or devices. `Request` is one input row as the engine
sees it, `RequestOutput` one continuation of it, `RowError` the fault of a row as data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Integral, Real
from typing import Any, NewType

RowIndex = NewType("RowIndex", int)
"""Place of a row among the job's rows, from 0 (blank lines are no rows)."""


class ErrorCode(StrEnum):
    """Machine-readable reasons why a row has no answer (contract.md, promise 9)."""

    INVALID_JSON = "invalid_json"
    INVALID_UTF8 = "invalid_utf8"
    NOT_AN_OBJECT = "not_an_object"
    BAD_ROW = "bad_row"
    MISSING_PROMPT = "missing_prompt"
    EMPTY_PROMPT = "empty_prompt"
    BAD_TYPE = "bad_type"
    BAD_PARAMS = "bad_params"
    TEMPLATE_ERROR = "template_error"
    PROMPT_TOO_LONG = "prompt_too_long"
    EXCEEDS_KV_CAPACITY = "exceeds_kv_capacity"
    DUPLICATE_ID = "duplicate_id"
    UNSUPPORTED = "unsupported"
    NAN_LOGITS = "nan_logits"
    TIMEOUT = "timeout"
    ENGINE_ERROR = "engine_error"


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"


KV_CAPACITY = "kv_capacity"
"""`stop_reason` of a sequence that ended with `length` because the KV cache could not hold more."""

MAX_SAMPLES = 128
"""Most samples of a request, as OpenAI bounds it."""

DEFAULT_MAX_TOKENS = 4096
"""Most tokens a row generates when nobody says how many (less when the context has less room)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """The fault of one row. The message says the value and the bound, without file and line."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn for a request and when its sequences end.

    Names and meanings are OpenAI's, with vLLM's for what OpenAI lacks.

    Attributes:
        n: Samples per request, at most 128.
        max_tokens: Most tokens to generate; None means the room left, at most 4,096.
        min_tokens: End-of-sequence tokens and stop strings are ignored before this many tokens.
        temperature: Divides the logits; below 1e-5 the most likely token is taken.
        top_p: Keep the smallest set of tokens whose probability reaches this share.
        top_k: Keep this many most likely tokens; None keeps all.
        min_p: Drop tokens less likely than this share of the most likely one.
        repetition_penalty: Divides positive (multiplies negative) logits of tokens seen in the
            prompt or the output (CTRL, Keskar et al. 2019, section 4.1).
        presence_penalty: Subtracted once from logits of tokens already generated.
        frequency_penalty: Subtracted for each time a token was generated.
        logit_bias: (token id, bias) pairs added to the logits.
        seed: Key of the sampling noise; None takes the run's seed and the row's index.
        ignore_eos: Do not stop at end-of-sequence tokens.
        stop: Strings that end a sequence; they are not part of its text.
        stop_token_ids: Token ids that end a sequence, beside the model's own.

    A single stop string, lists in place of tuples and a mapping of logit biases are taken, too.

    Raises:
        ValueError: A value is out of bounds. The message names the parameter, value and bound.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._make_tuples()
        if not isinstance(self.ignore_eos, bool):
            raise _wrong_type("ignore_eos", self.ignore_eos, "true or false")
        _require_count_between("n", self.n, 1, MAX_SAMPLES)
        _require_at_least("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _require_at_least("max_tokens", self.max_tokens, 0)
        if self.top_k is not None:
            _require_at_least("top_k", self.top_k, 1)
        _require_between("temperature", self.temperature, 0.0, 100.0)
        _require_between("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ValueError("top_p is 0; it must be above 0 and at most 1")
        _require_between("min_p", self.min_p, 0.0, 1.0)
        _require_between("repetition_penalty", self.repetition_penalty, 1e-3, 1e3)
        _require_between("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _require_between("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        if self.seed is not None:
            _require_integer("seed", self.seed)
            if not -(2**63) <= self.seed < 2**64:
                raise ValueError(f"seed is {self.seed}; it must fit 64 bits")
        if any(not stop for stop in self.stop):
            raise ValueError("stop holds an empty string; a stop string needs at least a character")
        for token_id, bias in self.logit_bias:
            _require_at_least("logit_bias token id", token_id, 0)
            _require_between(f"logit_bias of token {token_id}", bias, -1e4, 1e4)
        for token_id in self.stop_token_ids:
            _require_at_least("stop_token_ids entry", token_id, 0)

    def _make_tuples(self) -> None:
        """Take what people write: a frozen value must not hold a list that can change."""
        object.__setattr__(self, "stop", _strings("stop", self.stop))
        token_ids = _members("stop_token_ids", self.stop_token_ids, "a list of token ids")
        object.__setattr__(self, "stop_token_ids", token_ids)
        object.__setattr__(self, "logit_bias", _token_biases("logit_bias", self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < 1e-5

    @property
    def has_penalties(self) -> bool:
        """Whether drawing a token needs the tokens that came before it."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(slots=True)
class Request:
    """One row as the engine sees it. Exactly one of prompt, messages and input_ids is set.

    Nobody changes one. It is not frozen, and may be made by position, because one is made per
    row: making a frozen one by keywords takes four times as long.

    Attributes:
        row_index: Key of the request; outputs carry it.
        prompt: Text to continue.
        messages: Chat turns, null keys already stripped, contents plain strings.
        input_ids: Token ids to continue as they are.
        is_user_turn: The prompt becomes a user turn if the model has a chat template.
        system: System turn put before a prompt that is a user turn.
        params: How to sample.
        tools: Tool descriptions for the chat template.
        chat_template_kwargs: Further variables for the chat template.
        priority: Higher is admitted first, within the look-ahead window.
    """

    row_index: RowIndex
    prompt: str | None = None
    messages: tuple[Mapping[str, object], ...] | None = None
    input_ids: tuple[int, ...] | None = None
    is_user_turn: bool = False
    system: str | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    tools: tuple[Mapping[str, object], ...] | None = None
    chat_template_kwargs: Mapping[str, object] | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        num_given = (
            (self.prompt is not None) + (self.messages is not None) + (self.input_ids is not None)
        )
        assert num_given == 1, "one kind of prompt per request"


@dataclass(slots=True)
class RequestOutput:
    """One continuation of a request, or the error that took its place.

    Nobody changes one; not frozen, and perhaps made by position, for the same reason as `Request`.

    Attributes:
        row_index: The request's key.
        sample_index: Which of the request's n samples this is.
        text: Generated text without special tokens, cut before a stop string.
        token_ids: Generated token ids, a stop token included.
        finish_reason: Why it ended; None for an error.
        stop_reason: The stop string or stop token id that ended it, `kv_capacity`, or None
            (also None for the model's own end-of-sequence token).
        num_prompt_tokens: Tokens of the prompt.
        num_cached_tokens: Prompt tokens taken from the prefix cache at first admission.
        num_completion_tokens: Tokens generated.
        num_truncated_tokens: Tokens that were cut from the prompt to fit the context.
        logprobs: Natural log of each generated token's probability before temperature, if asked.
        error: The fault of the row, or None.
    """

    row_index: RowIndex
    sample_index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0
    num_truncated_tokens: int = 0
    logprobs: tuple[float, ...] | None = None
    error: RowError | None = None


RequestOutputs = tuple[RequestOutput, ...]
"""All outputs of one request, in order of their samples; a request that was rejected has one."""


def _members(name: str, value: object, wanted: str) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong_type(name, value, wanted)
    return tuple(value)


def _strings(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    strings = _members(name, value, "a string or a list of strings")
    for place, string in enumerate(strings):
        if not isinstance(string, str):
            raise _wrong_type(f"{name}[{place}]", string, "a string")
    return strings


def _token_biases(name: str, value: object) -> tuple[tuple[int, float], ...]:
    if isinstance(value, Mapping):
        return tuple(value.items())
    pairs = _members(name, value, "a mapping of token ids to biases, or a list of pairs")
    for place, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _wrong_type(f"{name}[{place}]", pair, "a pair of a token id and a bias")
    return tuple(map(tuple, pairs))


def _wrong_type(name: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{name} is {value!r}; it must be {wanted}")


def _require_integer(name: str, value: int) -> None:
    if type(value) is int:  # saves most of the time: the general check asks an abstract class
        return
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise _wrong_type(name, value, "an integer")


def _require_at_least(name: str, value: int, bound: int) -> None:
    _require_integer(name, value)
    if value < bound:
        raise ValueError(f"{name} is {value}; it must be at least {bound}")


def _require_count_between(name: str, value: int, low: int, high: int) -> None:
    _require_integer(name, value)
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be between {low} and {high}")


def _require_between(name: str, value: float, low: float, high: float) -> None:
    is_plain = type(value) is float or type(value) is int
    if not is_plain and (not isinstance(value, Real) or isinstance(value, bool)):
        raise _wrong_type(name, value, "a number")
    if not low <= value <= high:  # also false for a NaN
        raise ValueError(f"{name} is {value}; it must be between {low:g} and {high:g}")
