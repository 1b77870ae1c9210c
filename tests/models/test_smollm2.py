"""The embedded model against transformers' reading of the same file."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from nanobatch.models.decoder import DecoderModel
from nanobatch.models.source import resolve_model
from tests.models.steps import PagedSequences, load

pytestmark = pytest.mark.slow  # transformers takes seconds to read a GGUF vocabulary, twice

QUESTIONS = (
    "What is the capital of France?",
    "Classify the sentiment of this review as positive or negative: 'The battery died twice.'",
    "Écris une phrase sur la mer.",
)


@pytest.fixture(scope="module")
def model() -> DecoderModel:
    return load(resolve_model(None).path)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    path = resolve_model(None).path
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[list[int]]:
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for question in QUESTIONS
    ]


def test_logits_equal_transformers_reading_the_same_file(
    model: DecoderModel, prompts: list[list[int]]
) -> None:
    path = resolve_model(None).path
    reference = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    with torch.no_grad():
        expected = [reference(torch.tensor([ids])).logits[0] for ids in prompts]
    for chunk in (1000, 13):
        actual = PagedSequences(model, prompts).run(chunk)
        for ours, theirs in zip(actual, expected, strict=True):
            assert float((ours - theirs).abs().max() / theirs.abs().max()) <= 1e-5


def test_the_capital_of_france_is_paris(
    model: DecoderModel, tokenizer: Any, prompts: list[list[int]]
) -> None:
    token_ids = list(prompts[0])
    end = tokenizer.eos_token_id
    while token_ids[-1] != end or len(token_ids) == len(prompts[0]):
        logits = PagedSequences(model, [token_ids]).run(1000)[0]
        token_ids.append(int(logits[-1].argmax()))
    answer = tokenizer.decode(token_ids[len(prompts[0]) : -1])
    assert answer == "The capital of France is Paris."
