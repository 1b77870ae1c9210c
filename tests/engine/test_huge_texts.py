"""Texts far beyond the context cost no memory: refused without being encoded."""

from pathlib import Path

import pytest

from nanobatch.engine.tokenizer import PORTION_CHARS, Tokenizer
from nanobatch.models.source import resolve_model
from nanobatch.request import ErrorCode, Request, RowError, RowIndex
from tests.null_model import write_null_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = write_null_model(tmp_path_factory.mktemp("model"))
    return Tokenizer.load(resolve_model(str(folder)))


def requests(*texts: str) -> list[Request]:
    return [Request(row_index=RowIndex(place), prompt=text) for place, text in enumerate(texts)]


def test_a_text_longer_than_the_context_s_longest_tokens_is_refused_with_both_numbers(
    tokenizer: Tokenizer,
) -> None:
    """The longest token of the vocabulary, ` negative`, has nine characters."""
    [refused] = tokenizer.encode_requests(requests("x" * 900_000), max_num_tokens=100)
    assert refused == RowError(
        code=ErrorCode.PROMPT_TOO_LONG,
        message="prompt has at least 100,000 tokens; the model's context is 100",
    )


def test_no_text_that_fits_is_refused_by_its_length(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "negative negative" + " negative" * 50
    [alone] = tokenizer.encode_requests(requests(text), max_num_tokens=10_000)
    assert not isinstance(alone, RowError)
    [bounded] = tokenizer.encode_requests(requests(text), max_num_tokens=len(alone))
    assert not isinstance(bounded, RowError)
    assert bounded.tolist() == alone.tolist()


def test_texts_are_encoded_in_portions_with_the_same_result(tokenizer: Tokenizer) -> None:
    texts = ["the answer is good " * (PORTION_CHARS // 40), "short", "the name " * 9] * 3
    together = tokenizer.encode_requests(requests(*texts), max_num_tokens=10**9)
    for text, encoded in zip(texts, together, strict=True):
        [alone] = tokenizer.encode_requests(requests(text), max_num_tokens=10**9)
        assert not isinstance(encoded, RowError)
        assert not isinstance(alone, RowError)
        assert encoded.tolist() == alone.tolist()
