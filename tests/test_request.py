"""The boundary nouns: bounds of sampling parameters, in words that name parameter and bound."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from nanobatch.request import Request, RequestOutput, RowIndex, SamplingParams

INTEGERS = ("n", "max_tokens", "min_tokens", "top_k", "seed")
NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n": 0}, "n is 0; it must be between 1 and 128"),
        ({"n": 129}, "n is 129; it must be between 1 and 128"),
        ({"max_tokens": -1}, "max_tokens is -1; it must be at least 0"),
        ({"min_tokens": -1}, "min_tokens is -1; it must be at least 0"),
        ({"top_k": 0}, "top_k is 0; it must be at least 1"),
        ({"temperature": -0.1}, "temperature is -0.1; it must be between 0 and 100"),
        ({"temperature": math.nan}, "temperature is nan; it must be between 0 and 100"),
        ({"temperature": math.inf}, "temperature is inf; it must be between 0 and 100"),
        ({"top_p": 0.0}, "top_p is 0; it must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01; it must be between 0 and 1"),
        ({"min_p": -1.0}, "min_p is -1.0; it must be between 0 and 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be between 0.001 and"),
        ({"presence_penalty": 101.0}, "presence_penalty is 101.0; it must be between -100 and 100"),
        ({"frequency_penalty": -101}, "frequency_penalty is -101; it must be between -100 and 100"),
        ({"seed": 2**64}, f"seed is {2**64}; it must fit 64 bits"),
        ({"seed": -(2**63) - 1}, "it must fit 64 bits"),
        ({"stop": ("a", "")}, "stop holds an empty string"),
        ({"stop": ""}, "stop holds an empty string"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias token id is -1; it must be at least 0"),
        ({"logit_bias": ((5, 1e5),)}, "logit_bias of token 5 is 100000.0; it must be between"),
        ({"logit_bias": ((5, math.nan),)}, "logit_bias of token 5 is nan"),
        ({"stop_token_ids": (5, -2)}, "stop_token_ids entry is -2; it must be at least 0"),
    ],
)
def test_a_value_out_of_bounds_is_named_with_its_bound(
    values: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as raised:
        SamplingParams(**values)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [1.5, "3", True])
def test_counts_are_integers(name: str, value: object) -> None:
    with pytest.raises(ValueError) as raised:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert str(raised.value) == f"{name} is {value!r}; it must be an integer"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["0.5", True, [1.0]])
def test_weights_are_numbers(name: str, value: object) -> None:
    with pytest.raises(ValueError) as raised:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert str(raised.value) == f"{name} is {value!r}; it must be a number"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ignore_eos": "yes"}, "ignore_eos is 'yes'; it must be true or false"),
        ({"ignore_eos": 1}, "ignore_eos is 1; it must be true or false"),
        ({"stop": 5}, "stop is 5; it must be a string or a list of strings"),
        ({"stop": None}, "stop is None; it must be a string or a list of strings"),
        ({"stop": b"end"}, "stop is b'end'; it must be a string or a list of strings"),
        ({"stop": {"a": 1}}, "stop is {'a': 1}; it must be a string or a list of strings"),
        ({"stop": ["a", 5]}, "stop[1] is 5; it must be a string"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5; it must be a list of token ids"),
        ({"stop_token_ids": "12"}, "stop_token_ids is '12'; it must be a list of token ids"),
        ({"stop_token_ids": {1: 2}}, "stop_token_ids is {1: 2}; it must be a list of token ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids entry is True; it must be an integer"),
        ({"stop_token_ids": [1.0]}, "stop_token_ids entry is 1.0; it must be an integer"),
        ({"logit_bias": 5}, "logit_bias is 5; it must be a mapping of token ids to biases, or a"),
        ({"logit_bias": "5"}, "logit_bias is '5'; it must be a mapping"),
        ({"logit_bias": [5]}, "logit_bias[0] is 5; it must be a pair of a token id and a bias"),
        ({"logit_bias": [(5, 1.0), (6,)]}, "logit_bias[1] is (6,); it must be a pair"),
        ({"logit_bias": ["ab"]}, "logit_bias[0] is 'ab'; it must be a pair"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias token id is '5'; it must be an integer"),
        ({"logit_bias": {True: 1.0}}, "logit_bias token id is True; it must be an integer"),
        ({"logit_bias": {5: "1"}}, "logit_bias of token 5 is '1'; it must be a number"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_what_is_wanted(
    values: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as raised:
        SamplingParams(**values)
    assert message in str(raised.value)


def test_bounds_themselves_are_good() -> None:
    SamplingParams(temperature=0, top_p=1, min_p=0, max_tokens=0, min_tokens=0, top_k=1, n=1)
    SamplingParams(temperature=100.0, min_p=1.0, seed=2**64 - 1, repetition_penalty=1000)
    SamplingParams(seed=-(2**63), presence_penalty=-100, frequency_penalty=100)
    SamplingParams(max_tokens=np.int64(5), temperature=np.float32(0.5))  # type: ignore[arg-type]


def test_what_people_write_becomes_tuples() -> None:
    written = SamplingParams(stop="\n\n", stop_token_ids=[3], logit_bias={7: 1.5})  # type: ignore[arg-type]
    assert written == SamplingParams(stop=("\n\n",), stop_token_ids=(3,), logit_bias=((7, 1.5),))
    assert SamplingParams(stop=["a", "bc"]).stop == ("a", "bc")  # type: ignore[arg-type]
    assert SamplingParams(logit_bias=[[7, 1.5]]).logit_bias == ((7, 1.5),)  # type: ignore[arg-type]
    assert hash(written) == hash(dataclasses.replace(written))


def test_nothing_can_be_changed() -> None:
    params = SamplingParams()
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]
    assert dataclasses.replace(params, n=2).n == 2
    assert params.n == 1


@pytest.mark.parametrize(
    ("temperature", "is_greedy"), [(0.0, True), (9e-6, True), (1e-5, False), (1.0, False)]
)
def test_a_temperature_below_a_hundred_thousandth_is_greedy(
    temperature: float, is_greedy: bool
) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is is_greedy


@pytest.mark.parametrize(
    ("values", "has_penalties"),
    [
        ({}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": -0.5}, True),
        ({"frequency_penalty": 0.5}, True),
        ({"logit_bias": ((1, 1.0),)}, False),
    ],
)
def test_penalties_need_the_tokens_before(values: Mapping[str, Any], has_penalties: bool) -> None:
    assert SamplingParams(**values).has_penalties is has_penalties


@pytest.mark.parametrize(
    "prompts", [{}, {"prompt": "a", "input_ids": (1,)}, {"prompt": "", "messages": ()}]
)
def test_a_request_has_one_kind_of_prompt(prompts: Mapping[str, Any]) -> None:
    with pytest.raises(AssertionError, match="one kind of prompt"):
        Request(row_index=RowIndex(0), **prompts)


def test_an_output_begins_empty() -> None:
    output = RequestOutput(row_index=RowIndex(3))
    assert (output.text, output.token_ids, output.num_completion_tokens) == ("", (), 0)
    assert (output.finish_reason, output.stop_reason, output.error) == (None, None, None)
