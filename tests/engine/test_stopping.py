"""Where a text ends: stop strings across tokens and characters, minimum and maximum lengths."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanobatch.engine.sequence import Sequence
from nanobatch.engine.stopping import Ending, find_ending
from nanobatch.engine.tokenizer import Tokenizer
from nanobatch.request import FinishReason, Request, RequestOutput, RowIndex, SamplingParams
from tests.engine.scripted_engine import answer_all, ids_request, says, scripted_engine

PROMPT = (40, 41, 42)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    encoded = tokenizer.encode_requests(
        [Request(row_index=RowIndex(0), prompt=text)], max_num_tokens=10_000
    )[0]
    assert isinstance(encoded, np.ndarray)
    return [int(token_id) for token_id in encoded]


def answer(
    null_model: Path,
    tokenizer: Tokenizer,
    text: str,
    *,
    run_ahead: int = 0,
    num_decode_steps: int = 1,
    **params: Any,
) -> RequestOutput:
    """Return the output of a row whose model says this text."""
    token_ids = encode(tokenizer, text)
    engine = scripted_engine(
        null_model, says(token_ids), run_ahead=run_ahead, num_decode_steps=num_decode_steps
    )
    params = {"max_tokens": len(token_ids), **params}
    return answer_all(engine, [ids_request(0, PROMPT, **params)])[0]


@pytest.mark.parametrize(("run_ahead", "num_decode_steps"), [(0, 1), (3, 1), (0, 3), (1, 8)])
@pytest.mark.parametrize(
    ("text", "stop", "kept", "reason"),
    [
        ("one two three", ("two",), "one ", "two"),
        ("one two three", ("e t",), "on", "e t"),
        ("one two three", ("one",), "", "one"),
        ("one two three", ("three",), "one two ", "three"),
        ("one two three", ("absent",), "one two three", None),
        ("line\n\nnext", ("\n\n",), "line", "\n\n"),
        ("a is the capital of", ("capita",), "a is the ", "capita"),
        ("price: 5 € or 6", ("€",), "price: 5 ", "€"),
        ("née 日本語 fin", ("本",), "née 日", "本"),
        ("née 日本語 fin", ("日本語",), "née ", "日本語"),
        ("ok 👩‍👩‍👧 then", ("👩‍👧",), "ok 👩‍", "👩‍👧"),
        ("ok 👍🏽 then", ("👍",), "ok ", "👍"),
        ("\u00e9clair", ("e\u0301",), "\u00e9clair", None),
    ],
)
def test_a_stop_string_ends_the_text_before_it(
    text: str,
    stop: tuple[str, ...],
    kept: str,
    reason: str | None,
    run_ahead: int,
    num_decode_steps: int,
    null_model: Path,
    tokenizer: Tokenizer,
) -> None:
    output = answer(
        null_model,
        tokenizer,
        text,
        run_ahead=run_ahead,
        num_decode_steps=num_decode_steps,
        stop=stop,
    )
    assert (output.text, output.stop_reason) == (kept, reason)
    expected = FinishReason.LENGTH if reason is None else FinishReason.STOP
    assert output.finish_reason is expected


def test_nothing_follows_the_token_that_completes_a_stop_string(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    output = answer(
        null_model, tokenizer, "one two three", run_ahead=2, num_decode_steps=4, stop=("two",)
    )
    completing = len(encode(tokenizer, "one two"))
    assert output.token_ids == tuple(encode(tokenizer, "one two three")[:completing])
    assert output.num_completion_tokens == completing


def test_a_stop_string_within_one_token_keeps_what_stands_before_it(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    text = "it is of the capital"
    token = encode(tokenizer, " capital")
    assert len(token) == 1
    output = answer(null_model, tokenizer, text, stop=("pit",))
    assert (output.text, output.stop_reason) == ("it is of the ca", "pit")


@pytest.mark.parametrize(
    ("stop", "kept", "reason"),
    [
        (("three", "two"), "one ", "two"),
        (("two", "three"), "one ", "two"),
        (("o three", "two"), "one ", "two"),
        (("two", "one two"), "", "one two"),
        (("x", "wo t", "hree"), "one t", "wo t"),
    ],
)
def test_of_several_stop_strings_the_first_in_the_text_wins(
    stop: tuple[str, ...], kept: str, reason: str, null_model: Path, tokenizer: Tokenizer
) -> None:
    output = answer(null_model, tokenizer, "one two three", stop=stop)
    # Whichever is complete first ends the row; of those complete at once, the one that begins it.
    assert (output.text, output.stop_reason) == (kept, reason)


def test_of_two_stop_strings_that_one_token_completes_the_first_in_the_text_wins(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    output = answer(null_model, tokenizer, "the capital", stop=("tal", "api", "ita"))
    assert (output.text, output.stop_reason) == ("the c", "api")


def test_stop_strings_before_min_tokens_are_passed_over(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    text = "one. two. three. four."
    for kept in ("one", "one. two", "one. two. three", "one. two. three. four"):
        min_tokens = len(encode(tokenizer, f"{kept}."))
        output = answer(null_model, tokenizer, text, stop=(".",), min_tokens=min_tokens)
        assert (output.text, output.stop_reason) == (kept, ".")
        later = answer(null_model, tokenizer, text, stop=(kept,), min_tokens=min_tokens + 1)
        assert (later.text, later.finish_reason) == (text, FinishReason.LENGTH)


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    output = answer(null_model, tokenizer, "one two", stop=("two",))
    assert (output.text, output.finish_reason) == ("one ", FinishReason.STOP)


def test_a_stop_string_called_kv_capacity_is_a_stop_string(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    output = answer(null_model, tokenizer, "a kv_capacity b", stop=("kv_capacity",))
    assert (output.text, output.stop_reason) == ("a ", "kv_capacity")
    engine = scripted_engine(null_model, says(encode(tokenizer, "abc")), num_kv_blocks=1)
    params = {"stop": ("kv_capacity",), "max_tokens": 99}
    bounded = answer_all(engine, [ids_request(0, PROMPT, **params)])[0]
    assert (bounded.finish_reason, bounded.stop_reason) == (FinishReason.LENGTH, "kv_capacity")
    assert len(bounded.text) == 16 + 1 - len(PROMPT)


def test_the_end_of_a_long_text_is_searched_whatever_stands_before(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    for filler in ("x" * 200, "日本語" * 30, "é" * 100, "👍" * 50):
        output = answer(null_model, tokenizer, f"{filler}終わり…", stop=("終わり",))
        assert (output.text, output.stop_reason) == (filler, "終わり")


def test_an_unfinished_character_at_the_end_shows_as_one_replacement(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    num_tokens = len(encode(tokenizer, "5 €")) - 1
    output = answer(null_model, tokenizer, "5 €", max_tokens=num_tokens, stop=("€",))
    assert (output.text, output.finish_reason) == ("5 \ufffd", FinishReason.LENGTH)


@pytest.mark.parametrize("run_ahead", [0, 2])
def test_a_stop_string_of_replacement_characters_waits_until_a_character_is_decided(
    run_ahead: int, null_model: Path, tokenizer: Tokenizer
) -> None:
    text = "5 € and 日本 👍 ok"
    output = answer(null_model, tokenizer, text, run_ahead=run_ahead, stop=("\ufffd",))
    assert (output.text, output.finish_reason) == (text, FinishReason.LENGTH)
    said = answer(null_model, tokenizer, "5 €\ufffd and", run_ahead=run_ahead, stop=("\ufffd",))
    assert (said.text, said.stop_reason) == ("5 €", "\ufffd")
    assert said.num_completion_tokens == len(encode(tokenizer, "5 €\ufffd and"))
    together = answer(null_model, tokenizer, "5 \ufffdand more", stop=("\ufffdan",))
    assert (together.text, together.stop_reason) == ("5 ", "\ufffdan")


def test_at_the_last_allowed_token_every_character_is_decided(
    null_model: Path, tokenizer: Tokenizer
) -> None:
    output = answer(null_model, tokenizer, "one\ufffd", stop=("\ufffd",))
    assert (output.text, output.stop_reason) == ("one", "\ufffd")


def ending(reason: FinishReason, num_text_tokens: int, stop_reason: int | None = None) -> Ending:
    return Ending(finish_reason=reason, stop_reason=stop_reason, num_text_tokens=num_text_tokens)


@pytest.mark.parametrize(
    ("num_output", "params", "expected"),
    [
        (3, {}, ending(FinishReason.STOP, 2)),
        (3, {"min_tokens": 2}, ending(FinishReason.STOP, 2)),
        (3, {"min_tokens": 3}, None),
        (3, {"stop_token_ids": (9,)}, ending(FinishReason.STOP, 2, 9)),
        (5, {"min_tokens": 5}, ending(FinishReason.LENGTH, 5)),
        (5, {"stop": ("\t",)}, ending(FinishReason.STOP, 4)),
    ],
)
def test_stop_tokens_win_over_length_and_wait_for_min_tokens(
    num_output: int, params: dict[str, Any], expected: Ending | None
) -> None:
    sequence = Sequence(
        0,
        np.array(PROMPT, dtype=np.int32),
        params=SamplingParams(**params),
        max_tokens=5,
        eos_token_ids=(9,),
    )
    sequence.output_token_ids = [9] * num_output
    actual = find_ending(sequence, decode=lambda ids: "\t" * len(ids), is_kv_bound=False)
    assert actual == expected
